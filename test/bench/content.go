package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
)

// kind is the kind of content of a generated file.
type kind uint8

const (
	viewFile kind = iota
	styleFile
	scriptFile
	queryFile
	tagsFile
	pictureFile
	resourceFile
	unaryFile
	projectFile
	binaryFile
)

// path is a file of the generated repository, below the mapped folder.
type path struct {
	name string
	kind kind
	data string // the file that a resource.json lists
}

const mapped = "services/ignition/"

// binaries lists n large files of a project, such as manuals and films.
func binaries(n int) []path {
	var all []path
	for i := range n {
		all = append(all, path{fmt.Sprintf("projects/plant-00/media/film-%d.bin", i), binaryFile, ""})
	}
	return all
}

// binaryBytes is the size of each of them.
const binaryBytes = 40 << 20

// layout lists n files in the shape of real repositories: resources are directories of two or three small files, a
// sixth of all files are thumbnails, and paths are up to ten levels deep.
func layout(n int) []path {
	projects := min(1+n/4000, 40)
	var all []path
	put := func(dir, file string, k kind) {
		meta, metaKind := "resource.json", resourceFile
		if k == tagsFile {
			meta, metaKind = "unary-resource.json", unaryFile
		}
		all = append(all, path{dir + "/" + file, k, ""}, path{dir + "/" + meta, metaKind, file})
	}
	for i := 0; len(all) < n; i++ {
		p, j := i%projects, i/projects
		project := fmt.Sprintf("projects/plant-%02d", p)
		if j == 0 {
			all = append(all, path{project + "/project.json", projectFile, ""})
		}
		perspective := project + "/com.inductiveautomation.perspective/"
		switch i % 10 {
		case 6:
			put(fmt.Sprintf("%s/ignition/script-python/area%d/module%d", project, j%17, j), "code.py", scriptFile)
		case 7:
			put(fmt.Sprintf("%s/ignition/named-query/report%d/query%d", project, j%23, j), "query.sql", queryFile)
		case 8:
			put(fmt.Sprintf("config/resources/core/ignition/tag-definition/site-%d/area%d/line%d", p, j%29, j), "tags.json", tagsFile)
		case 9:
			put(fmt.Sprintf("%sstyle-classes/theme%d/class%d", perspective, j%7, j), "style.json", styleFile)
		default:
			dir := fmt.Sprintf("%sviews/area%d/line%d/cell%d/view%d", perspective, j%11, j%13, j%97, j)
			put(dir, "view.json", viewFile)
			if i%2 == 0 {
				all = append(all, path{dir + "/thumbnail.png", pictureFile, ""})
			}
		}
	}
	return all[:n]
}

// writer generates file contents. The same seed gives the same bytes on every machine and with every version of Go,
// because PCG is specified.
type writer struct {
	rand *rand.Rand
	mean float64 // mean size in bytes of a data file
	last string  // content of the last file, for which a resource.json is signed
}

func newWriter(seed uint64, mean int) *writer {
	return &writer{rand: rand.New(rand.NewPCG(seed, 0x53746f6b6572)), mean: float64(mean)}
}

// content generates a file. A resource.json is signed for the file generated before it, like a gateway or a Designer
// does.
func (w *writer) content(p path) string {
	w.last = w.made(p)
	return w.last
}

func (w *writer) made(p path) string {
	switch p.kind {
	case resourceFile:
		return w.resource(p.data)
	case unaryFile:
		return "{\n  \"scope\": \"A\",\n  \"version\": 1,\n  \"restricted\": false,\n  \"overridable\": true,\n  \"files\": [\n    \"tags.json\"\n  ],\n  \"attributes\": {}\n}"
	case projectFile:
		return "{\n  \"title\": \"Plant\",\n  \"description\": \"\",\n  \"parent\": \"\",\n  \"enabled\": true,\n  \"inheritable\": false\n}"
	case pictureFile:
		return "\x89PNG\r\n\x1a\n" + w.noise(w.size())
	case binaryFile:
		return w.noise(binaryBytes)
	case scriptFile:
		return w.lines("def on_%s_%s(event, value):\n\tsystem.tag.writeBlocking(['[default]%s/%s'], [value * %d])\n\n")
	case queryFile:
		return w.lines("SELECT t_stamp, %s, %s FROM history_%s WHERE %s > %d AND t_stamp > :since\nUNION ALL\n")
	case tagsFile:
		return w.list("[\n", "  {\n    \"name\": \"%s_%s\",\n    \"tagType\": \"AtomicTag\",\n    \"valueSource\": \"memory\",\n    \"dataType\": \"Float8\",\n    \"documentation\": \"%s of %s\",\n    \"value\": %d\n  }", "\n]")
	case styleFile:
		return w.list("{\n  \"base\": {},\n  \"variants\": [\n", "    {\"pseudo\": \"%s\", \"style\": {\"classes\": \"%s/%s\", \"name\": \"%s\", \"order\": %d}}", "\n  ]\n}")
	default:
		return w.list("{\n  \"custom\": {},\n  \"params\": {},\n  \"props\": {},\n  \"root\": {\n    \"children\": [\n",
			"      {\n        \"meta\": {\"name\": \"%s_%s\"},\n        \"props\": {\"text\": \"{[default]%s/%s}\", \"order\": %d},\n        \"type\": \"ia.display.label\"\n      }",
			"\n    ],\n    \"type\": \"ia.container.flex\"\n  }\n}")
	}
}

// size returns a random size around the mean, with a long tail as in real repositories.
func (w *writer) size() int {
	return int(min(max(w.mean*math.Exp(w.rand.NormFloat64()-0.5), 100), 2<<20))
}

var words = strings.Fields("alarm basis conveyor custom dropdown enabled flow historian indirect label level meta motor page params position pressure pump root session setpoint style tank temperature transform valve visible")

func (w *writer) word() string { return words[w.rand.IntN(len(words))] }

// item fills a pattern with four words and a number.
func (w *writer) item(pattern string) string {
	return fmt.Sprintf(pattern, w.word(), w.word(), w.word(), w.word(), w.rand.IntN(1_000_000))
}

func (w *writer) lines(pattern string) string {
	var b strings.Builder
	for size := w.size(); b.Len() < size; {
		b.WriteString(w.item(pattern))
	}
	return b.String()
}

// list generates JSON of a random size.
func (w *writer) list(open, pattern, end string) string {
	var b strings.Builder
	b.WriteString(open)
	for size := w.size(); ; {
		b.WriteString(w.item(pattern))
		if b.Len() >= size {
			break
		}
		b.WriteString(",\n")
	}
	b.WriteString(end)
	return b.String()
}

func (w *writer) noise(n int) string {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, w.rand.Uint64())
	}
	return string(b[:n])
}

func (w *writer) resource(data string) string {
	unsigned := fmt.Sprintf("{\n  \"scope\": \"G\",\n  \"version\": 1,\n  \"restricted\": false,\n  \"overridable\": true,\n  \"files\": [\n    %q\n  ],\n"+
		"  \"attributes\": {\n    \"lastModification\": {\n      \"actor\": \"engineer-%d\",\n      \"timestamp\": \"2025-0%d-1%dT0%d:1%d:2%dZ\"\n    },\n"+
		"    \"lastModificationSignature\": \"%s\"\n  }\n}",
		data, w.rand.IntN(9), 1+w.rand.IntN(8), w.rand.IntN(9), w.rand.IntN(9), w.rand.IntN(9), w.rand.IntN(9), strings.Repeat("0", 64))
	r, err := resource.ParseSigned([]byte(unsigned))
	if err != nil {
		panic(err) // the text is the constant above
	}
	sum, err := r.Signature(resource.Form83, func(to io.Writer, _ string) error {
		_, err := io.WriteString(to, w.last)
		return err
	})
	if err != nil {
		panic(err) // a hash never fails
	}
	return string(r.WithSignature(sum))
}
