// Package plot draws the tables of a page with results of the bench as SVG files beside that page.
package plot

import (
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// plotted are the cases of a plot, and who does them, in the order of the bars.
var (
	plotted = []string{"first sync", "nothing to do", "one file changed", "store lost, one file changed"}
	colors  = map[string]string{
		"agent --once": "#1f6feb", "agent, resident": "#79b8ff", "git + checkout + rsync -c": "#8b949e", "git fetch alone": "#d0d7de",
	}
)

// Bar is a row of a table.
type Bar struct {
	Who  string
	Wall float64 // median, in seconds
}

// Tables reads the tables of a page as the bench prints them: size → case → bars.
func Tables(page string) map[string]map[string][]Bar {
	all := map[string]map[string][]Bar{}
	size := ""
	for line := range strings.Lines(page) {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			size, _, _ = strings.Cut(title, ":")
		}
		cells := strings.Split(line, "|")
		if len(cells) < 5 || colors[strings.TrimSpace(cells[2])] == "" {
			continue
		}
		wall, err := strconv.ParseFloat(strings.TrimSpace(cells[3]), 64)
		if err != nil {
			continue
		}
		if all[size] == nil {
			all[size] = map[string][]Bar{}
		}
		work := strings.TrimSpace(cells[1])
		all[size][work] = append(all[size][work], Bar{strings.TrimSpace(cells[2]), wall})
	}
	return all
}

// plot draws the wall times of one size as horizontal bars on a logarithmic scale from a millisecond on.
func plot(title string, cases map[string][]Bar) string {
	const width, left, right, height, first = 760, 200, 80, 16, 48
	var b strings.Builder
	y := first
	scale := func(seconds float64) float64 {
		return math.Max(1, (width-left-right)*math.Log10(seconds*1000)/math.Log10(100_000)) // to 100 s
	}
	for _, work := range plotted {
		if len(cases[work]) == 0 {
			continue
		}
		fmt.Fprintf(&b, "<text x=\"8\" y=\"%d\" font-weight=\"bold\">%s</text>\n", y, html.EscapeString(work))
		for _, one := range cases[work] {
			y += height
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", left-8, y, html.EscapeString(one.Who))
			fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", left, y-height+5, scale(one.Wall), height-4, colors[one.Who])
			fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\">%g s</text>\n", left+scale(one.Wall)+4, y, one.Wall)
		}
		y += height * 3 / 2
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"12\">\n"+
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"8\" y=\"20\" font-size=\"14\">%s: median wall time, logarithmic</text>\n%s</svg>\n",
		width, y, html.EscapeString(title), b.String())
}

// drawings returns the plots of a page by file name.
func drawings(page string) map[string]string {
	files := map[string]string{}
	for size, cases := range Tables(page) {
		if len(cases["one file changed"]) > 0 && len(cases["first sync"]) > 0 {
			files["performance-"+strings.ToLower(size)+".svg"] = plot("Size "+size, cases)
		}
	}
	return files
}

// Draw writes the plots of a page beside it.
func Draw(page string, out io.Writer) error {
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	for name, svg := range drawings(string(content)) {
		name = filepath.Join(filepath.Dir(page), name)
		if err := os.WriteFile(name, []byte(svg), 0o644); err != nil {
			return err
		}
		fmt.Fprintln(out, name)
	}
	return nil
}
