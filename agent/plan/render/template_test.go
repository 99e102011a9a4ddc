package render

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

func facts() *Facts {
	return &Facts{
		GatewayName: "line-1", PodName: "line-1-gateway-2", PodOrdinal: 2, Namespace: "north", CRName: "plant",
		Labels: map[string]string{"example.com/site": "7"}, DeploymentMode: "dev", TagProvider: "default",
		Vars: map[string]string{"SiteNumber": "042", "host": "db.example.com", "Ref": "hidden"},
		Ref:  "main", Commit: "0123456789abcdef0123456789abcdef01234567",
	}
}

func execute(text string, limit int64) (string, error) {
	t, err := Parse("projects/p/x.json", text)
	if err != nil {
		return "", err
	}
	out, err := t.Execute(facts(), limit)
	return string(out), err
}

func TestTemplate(t *testing.T) {
	for text, want := range map[string]string{
		"nothing to do":                                      "nothing to do",
		"{{.GatewayName}}":                                   "line-1",
		"{{.PodName}}":                                       "line-1-gateway-2",
		"{{add .PodOrdinal 1}}":                              "3",
		"{{.Namespace}}/{{.CRName}}":                         "north/plant",
		"{{.SiteNumber}} {{.Vars.SiteNumber}}":               "042 042",
		"{{.Ref}} {{slice .Commit 0 7}}":                     "main 0123456",
		`{{index .Labels "example.com/site"}}`:               "7",
		`{{index .Labels "none" | default "x"}}`:             "x",
		`{{.DeploymentMode}} {{.TagProvider}}`:               "dev default",
		`{{if eq .DeploymentMode "dev"}}a{{else}}b{{end}}`:   "a",
		`{{range $i := 3}}{{$i}},{{end}}`:                    "0,1,2,",
		`{{range $k, $v := .Labels}}{{$k}}={{$v}}{{end}}`:    "example.com/site=7",
		`{{define "x"}}<{{.host}}>{{end}}{{template "x" .}}`: "<db.example.com>",
		`{{"{{"}}`:                                "{{",
		`{{.host | replace "." "-" | upper}}`:     "DB-EXAMPLE-COM",
		`{{index (split "-" .GatewayName) 1}}`:    "1",
		`{{json "a'b"}} {{json 7}} {{json true}}`: `"a\u0027b" 7 true`,
		`{{printf "%03d-%s" .PodOrdinal .host}}`:  "002-db.example.com",
		`{{printf "opc.tcp://%s:62541*" .host}}`:  "opc.tcp://db.example.com:62541*",
		`{{printf "%d%%2026" 7}}`:                 "7%2026",
		`{{printf "%-3d|%6.2[2]f" 7 1.5}}`:        "7  |  1.50",
		`{{.host | trimSuffix ".com" | trimPrefix "db."}}{{trim " x "}}{{lower "A"}}`: "examplexa",
		`{{hasPrefix "db" .host}} {{hasSuffix "x" .host}} {{contains "am" .host}}`:    "true false true",
		`{{sub 5 3}} {{mul 2 3}} {{div 7 2}} {{mod 7 2}} {{add (int .SiteNumber) 1}}`: "2 6 3 1 43",
		`{{required "no host" .host}}{{print "a" 1 "b"}}{{println "c"}}`:              "db.example.coma1bc\n",
		"{{- /* a comment */ -}} x": "x",
		`{{with .Vars}}{{.host}}{{end}}{{len .Vars}}{{and 1 0}}{{or 0 2}}{{not false}}`: "db.example.com302true",
	} {
		t.Run(text, func(t *testing.T) {
			got, err := execute(text, 1<<20)
			require.NoError(t, err, text)
			assert.Equal(t, want, got, text)
		})
	}
}

func TestInvalidTemplate(t *testing.T) {
	for text, says := range map[string][]string{
		"a\nb {{.Missing}}": {"projects/p/x.json:2:", "Missing"},
		"{{.Vars.missing}}": {"projects/p/x.json:1:", "missing"},
		"\n\n{{if}}":        {"projects/p/x.json:3"},
		"{{nosuch 1}}":      {"nosuch"},
		`{{env "HOME"}}`:    {"env"},
		`{{index .Labels "none" | required "which site?"}}`: {"which site?"},
		`{{html "<"}}`:   {"html"},
		`{{call .host}}`: {"call"},
		`{{define "a"}}{{template "b" .}}{{end}}{{define "b"}}{{template "a" .}}{{end}}{{template "a" .}}`: {"calls itself"},
		`{{template "none"}}`:         {"none"},
		`{{div 1 0}}`:                 {"division by zero"},
		`{{json .Labels}}`:            {"json"},
		`{{print .Vars}}`:             {"map"},
		`{{printf "%5000d" 1}}`:       {"three digits"},
		`{{printf "%.5000f" 1.5}}`:    {"three digits"},
		`{{printf "%[5000]d" 1}}`:     {"three digits"},
		`{{printf "%[%]%%5000d" 1}}`:  {`"%[%]%%5000d" does not begin with a verb`}, // to fmt, the first verb is %[%]%
		`{{printf "%*d" 5 1}}`:        {"width"},
		`{{index (split "-" "a") 5}}`: {"out of range"},
		`{{.GatewayName.Foo}}`:        {"Foo"},
		`{{_step -5}}`:                {"_step"},
		`{{range 9}}{{with $x := print (_step -5)}}{{end}}{{end}}`: {"_step"},
		`{{int "x"}}`: {"int"},
	} {
		t.Run(text, func(t *testing.T) {
			_, err := execute(text, 1<<20)
			require.Error(t, err, text)
			assert.Equal(t, v1alpha1.ReasonTemplateFailed, failure.Reason(err, ""), "%s: %v", text, err)
			for _, s := range append(says, "projects/p/x.json") {
				assert.ErrorContains(t, err, s, text)
			}
		})
	}
}

// F11 of docs/internals/threats.md: a hostile template can neither run long nor use much memory.
func TestTemplateBomb(t *testing.T) {
	chain := "{{define \"t0\"}}x{{end}}"
	for i := range 60 {
		chain += fmt.Sprintf("{{define \"t%d\"}}{{template \"t%d\" .}}{{template \"t%d\" .}}{{end}}", i+1, i, i)
	}
	for name, text := range map[string]string{
		"a long loop":              "{{range 4000000000}}{{end}}",
		"loops in loops":           "{{range 100000}}{{range 100000}}{{end}}{{end}}",
		"a loop that writes":       "{{range 900000}}" + strings.Repeat("x", 1000) + "{{end}}",
		"a value that doubles":     `{{$x := "0123456789"}}{{range 100}}{{$x = print $x $x}}{{end}}`,
		"many long values":         `{{$x := printf "%999s" ""}}` + strings.Repeat(`{{$x = replace " " "0123456789" (printf "%999s" "")}}`, 4500),
		"a format that repeats":    `{{$x := printf "%999s" ""}}{{printf "` + strings.Repeat("%[1]q", 1000) + `" $x}}`,
		"a replacement that grows": `{{$x := "aaaaaaaaaa"}}{{range 20}}{{$x = replace "a" "aaaaaaaaaa" $x}}{{end}}`,
		"templates that fan out":   chain + `{{template "t60" .}}`,
		"a split at nothing":       `{{range 1000000}}{{$x := split "" "` + strings.Repeat("x", 4000) + `"}}{{end}}`,
		"too many actions":         strings.Repeat("{{1}}", maxActions+1),
		"a literal too long":       `{{$x := "` + strings.Repeat("x", maxValue+1) + `"}}`,
		"many comparisons":         `{{$a := "` + strings.Repeat("x", 60000) + `a"}}{{$b := "` + strings.Repeat("x", 60000) + `b"}}{{range 1000000}}{{if eq $a $b $b $b $b}}{{end}}{{end}}`,
	} {
		if testing.Short() && name == "loops in loops" {
			continue // takes as long as "a long loop", and stops for the same reason
		}
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			started := time.Now()
			_, err := execute(text, 1<<20)
			require.Error(t, err)
			assert.Equal(t, v1alpha1.ReasonLimitExceeded, failure.Reason(err, ""), "%v", err)
			assert.ErrorContains(t, err, "projects/p/x.json")
			assert.Less(t, time.Since(started), 20*time.Second, "rendering stops early; a full run would take days")
			runtime.ReadMemStats(&after)
			assert.Less(t, int64(after.HeapSys)-int64(before.HeapSys), int64(256<<20))
		})
	}
}

func TestNestedBlocks(t *testing.T) {
	const n = maxActions / 2
	out, err := execute(strings.Repeat("{{if 1}}", n)+"x"+strings.Repeat("{{end}}", n), 100)
	require.NoError(t, err)
	assert.Equal(t, "x", out)
	var b strings.Builder
	for i := range n - 1 {
		fmt.Fprintf(&b, `{{define "t%d"}}{{template "t%d" .}}{{end}}`, i, i+1)
	}
	_, err = execute(b.String(), 100)
	require.Error(t, err, "three actions for each block exceed the limit")
}

func TestTemplateUsesCommit(t *testing.T) {
	for text, want := range map[string]bool{
		"{{.GatewayName}}": false, "{{.Vars.Commit}}": false, "{{range $k, $v := .Labels}}{{$v}}{{end}}": false,
		`{{define "x"}}{{.host}}{{end}}{{template "x" .}}`: false, `{{template "x" $}}{{define "x"}}{{end}}`: false,
		"{{$.GatewayName}}": false,
		"{{.Commit}}":       true, "{{.Ref}}": true, "{{$.Commit}}": true, "{{with $x := .}}{{$x.Commit}}{{end}}": true, "{{.}}": true,
		`{{index . "Commit"}}`: true, `{{index $ "Ref"}}`: true, "{{range .}}x{{end}}": true,
		`{{define "x"}}{{.Commit}}{{end}}{{template "x" .}}`: true, "{{if .Ref}}{{end}}": true, "{{(index .Vars).Commit}}": true,
		`{{if false}}{{else}}{{slice .Commit 0 7}}{{end}}`: true, `{{template "x" print .Commit}}{{define "x"}}{{end}}`: true,
	} {
		t.Run(text, func(t *testing.T) {
			tmpl, err := Parse("a.json", text)
			require.NoError(t, err)
			assert.Equal(t, want, tmpl.Volatile(), text)
		})
	}
}

func TestFactsFingerprint(t *testing.T) {
	want := facts().Fingerprint()
	same := facts()
	same.Ref, same.Commit = "other", "other"
	assert.Equal(t, want, same.Fingerprint())
	for name, change := range map[string]func(*Facts){
		"gateway name": func(f *Facts) { f.GatewayName = "" }, "pod name": func(f *Facts) { f.PodName = "" },
		"pod ordinal": func(f *Facts) { f.PodOrdinal = 0 }, "namespace": func(f *Facts) { f.Namespace = "" },
		"CR name": func(f *Facts) { f.CRName = "" }, "labels": func(f *Facts) { f.Labels = nil },
		"deployment mode": func(f *Facts) { f.DeploymentMode = "" }, "tag provider": func(f *Facts) { f.TagProvider = "" },
		"variable": func(f *Facts) { f.Vars["x"] = "" },
	} {
		t.Run(name, func(t *testing.T) {
			f := facts()
			change(f)
			assert.NotEqual(t, want, f.Fingerprint())
		})
	}
}

func TestUnknownFact(t *testing.T) {
	f := facts()
	f.Unlabelled = true
	for text, want := range map[string]bool{
		"{{.Labels.area}}": true, `{{index .Labels "area"}}`: true, "{{with .Labels}}{{.area}}{{end}}": true, "{{.PodOrdinal}}": true, "{{.DeploymentMode}}{{.Vars.nope}}": true,
		`{{define "b"}}{{.Labels.area}}{{end}}{{template "b" .}}`: true, "{{.Nope}}": false, "{{.GatewayName}} {{.Vars.nope}}": false,
		"{{range .Vars}}{{.}}{{end}}{{.Vars.nope}}": false, "{{with .Vars}}{{.nope}}{{end}}": false, "{{$.PodOrdinal}}": true,
		`{{index . "PodOrdinal"}}`: true, `{{index . "Labels" "area"}}`: true, `{{$f := .}}{{"Labels" | index $f}}`: true, `{{index . "Vars" "nope" "x"}}`: false,
	} {
		t.Run(text, func(t *testing.T) {
			tmpl, err := Parse("a", text)
			require.NoError(t, err)
			_, err = tmpl.Execute(f, 1<<10)
			require.Error(t, err, text)
			assert.True(t, failure.Is(err, v1alpha1.ReasonTemplateFailed), text)
			assert.Equal(t, want, errors.Is(err, ErrUnread), text)
			_, err = tmpl.Execute(facts(), 1<<10)
			assert.NotErrorIs(t, err, ErrUnread, text)
		})
	}
	tmpl, err := Parse("a", "{{.GatewayName}}{{if false}}{{.Labels}}{{end}}")
	require.NoError(t, err)
	_, err = tmpl.Execute(f, 1<<10)
	assert.NoError(t, err, "an unused fact may be missing")
}

// FuzzTemplate checks that rendering ends within its limits and is deterministic. If a template is not reported to use the commit,
// another commit must not change the result.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"{{.GatewayName}}", "{{range 10}}{{.}}{{end}}", `{{define "a"}}{{template "a"}}{{end}}`, `{{printf "%999d%999d" 1 2}}`,
		`{{index . "Commit"}}`, `{{$x := .}}{{$x.Ref}}`, `{{range $i, $e := split "" .host}}{{if eq $i 3}}{{break}}{{end}}{{json $e}}{{end}}`,
		"{{with .Vars}}{{else}}{{end}}", "{{block \"x\" .}}{{.Ref}}{{end}}", "{{- /* */ -}}", `{{slice .Commit 3 1}}`, `{{call html}}`,
		`{{_step -5}}`, `{{replace "" "xxxxxxxx" .host}}`, "{{1 | print | printf}}", `{{.PodOrdinal | mul 3 | printf "%c"}}`, "{{`\n`}}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 1 << 16
		tmpl, err := Parse("file", text)
		if err != nil {
			require.NotEmpty(t, failure.Reason(err, ""))
			return
		}
		first, err := tmpl.Execute(facts(), limit)
		if err != nil {
			require.NotEmpty(t, failure.Reason(err, ""))
			return
		}
		require.LessOrEqual(t, len(first), limit)
		again, err := tmpl.Execute(facts(), limit)
		require.NoError(t, err)
		require.Equal(t, first, again)
		if !tmpl.Volatile() {
			next := facts()
			next.Ref, next.Commit = "release", strings.Repeat("f", 40)
			other, err := tmpl.Execute(next, limit)
			require.NoError(t, err)
			require.Equal(t, first, other)
		}
	})
}

// rows returns the table rows of the pages whose first two cells are code.
func rows(t *testing.T) [][]string {
	t.Helper()
	var pages []byte
	// setup: one text
	for _, page := range []string{"how-to/templates.md", "reference/template-functions.md"} {
		raw, err := os.ReadFile("../../../docs/" + page)
		require.NoError(t, err)
		pages = append(pages, raw...)
	}
	var list [][]string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\| (.*) \\|$").FindAllStringSubmatch(string(pages), -1) {
		list = append(list, m[1:])
	}
	return list
}

func TestDocumentedFactsAndFunctions(t *testing.T) {
	f := Facts{
		GatewayName: "line-1", PodName: "line-1-gateway-0", Namespace: "north", CRName: "plant", Ref: "main",
		Labels: map[string]string{"example.com/area": "7"}, DeploymentMode: "dev", TagProvider: "default",
	}
	var facts, functions []string
	for _, row := range rows(t) {
		if name, ok := strings.CutPrefix(row[0], "."); ok {
			facts = append(facts, name)
			continue
		}
		functions = append(functions, row[0])
		got, _, err := Text(row[0], row[1], &f)
		require.NoError(t, err)
		assert.Contains(t, row[1], row[0], "the example of %s uses it", row[0])
		assert.Equal(t, strings.Trim(row[2], "`"), strings.TrimSpace(got), row[0])
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(f.values())), facts)
	hidden := []string{step, "html", "js", "urlquery", "call"}
	var want []string
	for name := range (&meter{}).functions() {
		if !slices.Contains(hidden, name) {
			want = append(want, name)
		}
	}
	assert.ElementsMatch(t, want, functions)
}
