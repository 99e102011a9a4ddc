package repository

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"

	"stoker.io/stoker/agent/ignition/resource"
)

// Kind is the kind of content of a generated file.
type Kind uint8

// Kinds of content.
const (
	ViewFile Kind = iota
	StyleFile
	ScriptFile
	QueryFile
	TagsFile
	PictureFile
	ResourceFile
	UnaryFile
	ProjectFile
	BinaryFile
)

// Path is a file of the generated repository, below the Mapped folder.
type Path struct {
	Name string
	Kind Kind
	data string // the file that a resource.json lists
}

// Mapped is the folder of the repository whose files a gateway gets.
const Mapped = "services/ignition/"

// binaries lists n large files of a project, such as manuals and films.
func binaries(n int) []Path {
	var all []Path
	for i := range n {
		all = append(all, Path{fmt.Sprintf("projects/plant-00/media/film-%d.bin", i), BinaryFile, ""})
	}
	return all
}

// BinaryBytes is the size of a BinaryFile.
const BinaryBytes = 40 << 20

// Layout lists n files in the shape of real repositories: resources are directories of two or three small files, about
// an eighth of all files are thumbnails, and paths are up to ten levels deep.
func Layout(n int) []Path {
	projects := min(1+n/4000, 40)
	var all []Path
	put := func(dir, file string, k Kind) {
		meta, metaKind := "resource.json", ResourceFile
		if k == TagsFile {
			meta, metaKind = "unary-resource.json", UnaryFile
		}
		all = append(all, Path{dir + "/" + file, k, ""}, Path{dir + "/" + meta, metaKind, file})
	}
	for i := 0; len(all) < n; i++ {
		p, j := i%projects, i/projects
		project := fmt.Sprintf("projects/plant-%02d", p)
		if j == 0 {
			all = append(all, Path{project + "/project.json", ProjectFile, ""})
		}
		perspective := project + "/com.inductiveautomation.perspective/"
		switch i % 10 {
		case 6:
			put(fmt.Sprintf("%s/ignition/script-python/area%d/module%d", project, j%17, j), "code.py", ScriptFile)
		case 7:
			put(fmt.Sprintf("%s/ignition/named-query/report%d/query%d", project, j%23, j), "query.sql", QueryFile)
		case 8:
			put(fmt.Sprintf("config/resources/core/ignition/tag-definition/site-%d/area%d/line%d", p, j%29, j), "tags.json", TagsFile)
		case 9:
			put(fmt.Sprintf("%sstyle-classes/theme%d/class%d", perspective, j%7, j), "style.json", StyleFile)
		default:
			dir := fmt.Sprintf("%sviews/area%d/line%d/cell%d/view%d", perspective, j%11, j%13, j%97, j)
			put(dir, "view.json", ViewFile)
			if i%2 == 0 {
				all = append(all, Path{dir + "/thumbnail.png", PictureFile, ""})
			}
		}
	}
	return all[:n]
}

// Writer generates file contents. The same seed gives the same bytes on every machine and with every version of Go,
// because PCG is specified.
type Writer struct {
	rand *rand.Rand
	mean float64 // mean size in bytes of a data file
	last string  // content of the last file, for which a resource.json is signed
}

// NewWriter returns a writer whose data files have a mean size of mean bytes.
func NewWriter(seed uint64, mean int) *Writer {
	return &Writer{rand: rand.New(rand.NewPCG(seed, 0x53746f6b6572)), mean: float64(mean)}
}

// Content generates a file. A resource.json is signed for the file generated before it, like a gateway or a Designer
// does.
func (w *Writer) Content(p Path) string {
	w.last = w.made(p)
	return w.last
}

func (w *Writer) made(p Path) string {
	switch p.Kind {
	case ResourceFile:
		return w.resource(p.data)
	case UnaryFile:
		return "{\n  \"scope\": \"A\",\n  \"version\": 1,\n  \"restricted\": false,\n  \"overridable\": true,\n  \"files\": [\n    \"tags.json\"\n  ],\n  \"attributes\": {}\n}"
	case ProjectFile:
		return "{\n  \"title\": \"Plant\",\n  \"description\": \"\",\n  \"parent\": \"\",\n  \"enabled\": true,\n  \"inheritable\": false\n}"
	case PictureFile:
		return "\x89PNG\r\n\x1a\n" + w.noise(w.size())
	case BinaryFile:
		return w.noise(BinaryBytes)
	case ScriptFile:
		return w.lines("def on_%s_%s(event, value):\n\tsystem.tag.writeBlocking(['[default]%s/%s'], [value * %d])\n\n")
	case QueryFile:
		return w.lines("SELECT t_stamp, %s, %s FROM history_%s WHERE %s > %d AND t_stamp > :since\nUNION ALL\n")
	case TagsFile:
		return w.list("[\n", "  {\n    \"name\": \"%s_%s\",\n    \"tagType\": \"AtomicTag\",\n    \"valueSource\": \"memory\",\n    \"dataType\": \"Float8\",\n    \"documentation\": \"%s of %s\",\n    \"value\": %d\n  }", "\n]")
	case StyleFile:
		return w.list("{\n  \"base\": {},\n  \"variants\": [\n", "    {\"pseudo\": \"%s\", \"style\": {\"classes\": \"%s/%s\", \"name\": \"%s\", \"order\": %d}}", "\n  ]\n}")
	default:
		return w.list("{\n  \"custom\": {},\n  \"params\": {},\n  \"props\": {},\n  \"root\": {\n    \"children\": [\n",
			"      {\n        \"meta\": {\"name\": \"%s_%s\"},\n        \"props\": {\"text\": \"{[default]%s/%s}\", \"order\": %d},\n        \"type\": \"ia.display.label\"\n      }",
			"\n    ],\n    \"type\": \"ia.container.flex\"\n  }\n}")
	}
}

// size returns a random size around the mean, with a long tail as in real repositories.
func (w *Writer) size() int {
	return int(min(max(w.mean*math.Exp(w.rand.NormFloat64()-0.5), 100), 2<<20))
}

var words = strings.Fields("alarm basis conveyor custom dropdown enabled flow historian indirect label level meta motor page params position pressure pump root session setpoint style tank temperature transform valve visible")

func (w *Writer) word() string { return words[w.rand.IntN(len(words))] }

// item fills a pattern with four words and a number.
func (w *Writer) item(pattern string) string {
	return fmt.Sprintf(pattern, w.word(), w.word(), w.word(), w.word(), w.rand.IntN(1_000_000))
}

func (w *Writer) lines(pattern string) string {
	var b strings.Builder
	for size := w.size(); b.Len() < size; {
		b.WriteString(w.item(pattern))
	}
	return b.String()
}

// list generates JSON of a random size.
func (w *Writer) list(open, pattern, end string) string {
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

func (w *Writer) noise(n int) string {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, w.rand.Uint64())
	}
	return string(b[:n])
}

func (w *Writer) resource(data string) string {
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
