package references

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/test/heap"
)

// Whatever the files of a commit are, a check takes bounded time and memory.
func TestHostileFiles(t *testing.T) {
	view := func(i int) string { return fmt.Sprintf("projects/p/%sviews/v%d/view.json", perspective, i) }
	one := func(text string) builder {
		return builder{"projects/p/project.json": `{"parent": ""}`, view(0): text, core + "tag-definition/t/udts.json": text, core + "tag-type-definition/t/udts.json": text,
			"projects/p/" + pagesPath: text, "projects/p/ignition/named-query/q/resource.json": text, core + "user-source/u/config.json": text}
	}
	nest := func(open, end string, n int) string { return strings.Repeat(open, n) + "1" + strings.Repeat(end, n) }
	for _, c := range []struct {
		name  string
		files builder
	}{
		{"no JSON", one("viewPath typeId \x00\xff")},
		{"nothing", one("")},
		{"a scalar", one(`"viewPath"`)},
		{"a list of objects", one(`[{"viewPath": 0, "typeId": "a"}]`)},
		{"lists in lists", one(`[[{"viewPath": "a"}], {"root": [{"viewPath": "a"}]}, "typeId"]`)},
		{"an end without a beginning", one(`]}viewPath "typeId"`)},
		{"deep lists", one("[\"viewPath\", \"typeId\", " + nest("[", "]", 1_000_000) + "]")},
		{"deep objects", one(nest(`{"children": [{"viewPath": "a", "typeId": `, "}]}", 80_000))},
		{"deep folders", one(`[` + nest(`{"name": "a", "tagType": "Folder", "typeId": "b", "tags": [`, `]}`, 60_000) + `]`)},
		{"a wide list", one(`{"viewPath": [` + strings.Repeat(`"a",`, 800_000) + `"typeId"]}`)},
		{"many components", one(`{"root": {"children": [` + strings.TrimSuffix(strings.Repeat(embedded("gone")+",", 30_000), ",") + `]}}`)},
		{"many properties", one(`{"root": {"type": "ia.display.table", "propConfig": {` + manyKeys(60_000, `"props.p%d": {"binding": {"type": "expr"}}`) +
			`}, "props": {"columns": [` + strings.TrimSuffix(strings.Repeat(`{"render": "view", "viewPath": "gone"},`, 30_000), ",") + `]}}}`)},
		{"a long name", one(`{"root": ` + embedded(strings.Repeat("a/", 1_000_000)) + `}`)},
		{"a long key", one(`{"root": {"` + strings.Repeat("~", 3_000_000) + `": {"viewPath": "a"}, "typeId": "a"}}`)},
		{"more than the limit of a file", one(`{"viewPath": "` + strings.Repeat("a", maxFile) + `"}`)},
		{"names that are no paths", one(`{"pages": {"a": {"viewPath": "../../../etc/passwd"}, "b": {"viewPath": "a\u0000b"}, "c": {"viewPath": "a//b"}}}`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			commit, x := newCommit(t, c.files), NewIndex()
			began := time.Now()
			peak := heap.Peak(t, func() {
				require.NoError(t, x.Update(nil, commit.tree, commit.read))
				r := x.Check(x.Check(nil, diskOf(nil)).Found, diskOf(nil))
				assert.LessOrEqual(t, len(r.Findings), MaxFindings)
				r = x.Check(nil, diskOf(nil))
				for i := range r.Findings {
					assert.Less(t, len(r.Findings[i].String()), 1_500)
					assert.NotContains(t, r.Findings[i].String(), "\x00")
				}
			})
			t.Logf("%v, %d MiB", time.Since(began).Round(time.Millisecond), peak)
			assert.Less(t, peak, 128)
			assert.Less(t, time.Since(began), 20*time.Second)
		})
	}
}

// A file of 4 MiB takes little memory to read, although a component is kept until its end.
func TestMemoryOfOneFile(t *testing.T) {
	key := func(i int) string { return strings.Repeat("k", 1_000) + strconv.Itoa(i) }
	// keys opens objects, each under a long key, and one list of the values that are inside.
	keys := func(n int, values string) string {
		open := ""
		for i := range n {
			open += fmt.Sprintf(`{%q: `, key(i))
		}
		return open + "[" + values + "]" + strings.Repeat("}", n)
	}
	components := func(n int, members string) string {
		return `{"root": ` + strings.Repeat(`{`+members+`, "children": [`, n) + `{}` + strings.Repeat(`]}`, n) + `, "custom": "viewPath"}`
	}
	repeat := func(value string, n int) string { return strings.TrimSuffix(strings.Repeat(value+",", n), ",") }
	long := fmt.Sprintf("%q", strings.Repeat("n", 1_000))
	view, types := "projects/p/"+perspective+"views/v/view.json", core+"tag-type-definition/t/udts.json"
	for _, tt := range []struct{ name, path, content string }{
		{"paths under long keys", view, components(59, `"props": `+keys(5, repeat(`{"path":"a"}`, 4_990)))},
		{"paths under a long key", view, components(59, `"props": `+keys(1, repeat(`{"path":"a"}`, 4_990)))},
		{"actions under long keys", view, components(59, `"events": `+keys(5, repeat(`{"path":"a"}`, 4_990)))},
		{"settings under long keys", view, components(59, `"props": `+keys(5, repeat(`{"type":"a"}`, 4_990)))},
		{"long names", view, components(400, `"type": "ia.display.table", "props": {"columns": [`+repeat(`{"viewPath":`+long+`}`, 10)+`]}`)},
		{"bindings under long keys", view, components(400, `"propConfig": {`+manyKeys(10, `"`+strings.Repeat("k", 1_000)+`%d": {"binding": {"type": "expr"}}`)+`}`)},
		{"types in folders with long names", types, strings.Repeat(`[{"name": `+long+`, "tagType": "Folder", "tags": `, 400) +
			`[` + repeat(`{"name": "a", "tagType": "UdtType"}`, 100_000) + `]` + strings.Repeat(`}]`, 400)},
		{"types in a folder with a long name", types, `[{"name": ` + long[:900] + `", "tagType": "Folder", "tags": [` + repeat(`{"name": "a", "tagType": "UdtType"}`, 110_000) + `]}]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			content := []byte(tt.content)
			require.LessOrEqual(t, len(content), maxFile)
			peak := heap.Peak(t, func() { extractorOf(tt.path).read(plan.ID{}, content, true) })
			t.Logf("%d MiB for a file of %d KiB", peak, len(content)>>10)
			assert.Less(t, peak, 32)
		})
	}
}

func manyKeys(n int, pattern string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(pattern, i)
	}
	return strings.Join(list, ",")
}

// memoryOf returns how much more memory is in use after f than before.
func memoryOf(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	f()
	runtime.GC()
	runtime.ReadMemStats(&after)
	if after.HeapAlloc < before.HeapAlloc {
		return 0
	}
	return after.HeapAlloc - before.HeapAlloc
}

func TestManyReferences(t *testing.T) {
	b := builder{}
	b.project("p", "", true)
	for i := range 300 { // setup: half a million names, each of another view
		parts := make([]string, 2_000)
		for j := range parts {
			parts[j] = embedded(fmt.Sprintf("Gone/%d/%d", i, j))
		}
		b.view("p", fmt.Sprintf("v%d", i), parts...)
	}
	c := newCommit(t, b)
	x := NewIndex()
	began := time.Now()
	grew := memoryOf(func() { require.NoError(t, x.Update(nil, c.tree, c.read)) })
	t.Logf("index: %v, %d MiB", time.Since(began).Round(time.Millisecond), grew>>20)
	assert.Equal(t, maxReferences, x.names)
	assert.NotZero(t, grew)
	assert.Less(t, grew, uint64(64<<20))
	began = time.Now()
	r := x.Check(nil, diskOf(nil))
	t.Logf("check: %v", time.Since(began).Round(time.Millisecond))
	assert.Len(t, r.Findings, MaxFindings)
	assert.Equal(t, maxReferences, len(r.Findings)+r.More)
	assert.Less(t, time.Since(began), 20*time.Second)
	runtime.KeepAlive(b)
	runtime.KeepAlive(c)
}

// If the types of a provider are more than are kept, no type of it counts as missing.
func TestManyTypes(t *testing.T) {
	types := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(`{"name": "type-%d", "tagType": "UdtType"}`, i)
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	const tags = core + "tag-definition/t/udts.json"
	for _, tt := range []struct {
		name                  string
		files, typesInEach    int
		kept, reportsAMissing bool
	}{
		{"few", 2, 1_000, true, true},
		{"more than the limit of a file", 1, 40_000, false, false},
		{"more than the limit of a commit", 12, 25_000, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := builder{tags: `[{"name": "a", "tagType": "UdtInstance", "typeId": "gone"}]`}
			text := types(tt.typesInEach)
			for i := range tt.files { // setup: the files
				b[fmt.Sprintf("%stag-type-definition/t/folder-%d/udts.json", core, i)] = text
			}
			x := indexOf(t, b)
			assert.LessOrEqual(t, x.types, maxTypes)
			assert.Equal(t, tt.kept, x.defined[Name{UDTType, "t", "folder-0/type-7"}.key()] > 0)
			missing := slices.ContainsFunc(x.Check(nil, diskOf(nil)).Findings, func(f Finding) bool { return f.Kind == UDTType })
			assert.Equal(t, tt.reportsAMissing, missing)
			for path := range b {
				x.replace(path, nil)
			}
			assert.Zero(t, x.types)
			assert.Empty(t, x.defined)
			assert.Empty(t, x.unread)
		})
	}
}

func TestManyProjectsInACycle(t *testing.T) {
	b := builder{}
	const n = 3_000
	for i := range n {
		b.project(fmt.Sprintf("p%d", i), fmt.Sprintf("p%d", (i+1)%n), true)
		b.view(fmt.Sprintf("p%d", i), "v", embedded("gone"))
	}
	b.project("a", "b", true)
	b.project("b", "c", true)
	b.project("c", "a", true)
	b.view("a", "v", embedded("gone"))
	x := indexOf(t, b)
	began := time.Now()
	list := texts(x.Check(nil, diskOf(nil)))
	assert.Less(t, time.Since(began), 20*time.Second)
	require.Len(t, list, 1, "a cycle that is longer than any chain of parents is not followed")
	assert.Contains(t, list[0], `"projects/a/project.json#/parent" names the project "b", which inherits from it`)
}

// Any text in any kind of file is read without a panic.
func FuzzFiles(f *testing.F) {
	for _, seed := range []string{`[{"viewPath":0}]`, `{"root":{"children":[{"type":"ia.display.view","props":{"path":"a"}}]}}`, `{"pages":{"/":{"viewPath":"a"}}}`,
		`[{"name":"a","typeId":"b","tags":[{"typeId":"c"}]}]`, `{"attributes":{"database":"x"}}`, `{"propConfig":{"a":{"binding":{"type":"query","config":{"queryPath":"q"}}}}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		x := indexOf(t, builder{
			"projects/p/project.json": text, "projects/p/" + perspective + "views/v/view.json": text, "projects/p/" + pagesPath: text,
			"projects/p/ignition/named-query/q/resource.json": text, core + "tag-definition/t/udts.json": text,
			core + "tag-type-definition/t/udts.json": text, core + "user-source/u/config.json": text, core + "identity-provider/i/config.json": text,
		})
		x.Check(nil, diskOf(nil))
	})
}
