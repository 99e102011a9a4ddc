package sender

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// delivered is a delivery in testdata, by its name in the file of its sender, based on the sender's documentation, with the expected request.
type delivered struct {
	name   string
	Header map[string]string
	Body   json.RawMessage
	Want   Request
}

func (d *delivered) header() http.Header {
	h := http.Header{}
	for name, value := range d.Header {
		h.Set(name, value)
	}
	return h
}

func deliveries(t testing.TB) []delivered {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	require.NoError(t, err)
	var all []delivered
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var byName map[string]delivered
		require.NoError(t, json.Unmarshal(text, &byName), file)
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			d := byName[name]
			d.name = name
			all = append(all, d)
		}
	}
	require.Greater(t, len(all), 30)
	return all
}

func TestParseDeliveries(t *testing.T) {
	for _, d := range deliveries(t) {
		t.Run(d.name, func(t *testing.T) {
			got, err := Parse(d.header(), d.Body)
			require.NoError(t, err)
			assert.Equal(t, got.Kind == KindNothing, got.Why != "", "%q", got.Why)
			got.Why = ""
			assert.Equal(t, d.Want, got)
		})
	}
}

// The receiver keeps only the beginning of a large push. CutObject returns the members before the commits.
func TestCutObject(t *testing.T) {
	for body, want := range map[string]string{
		`{"ref":"refs/tags/v1","n":{"a":[1]},"commits":[{"id":"x`: `{"ref":"refs/tags/v1","n":{"a":[1]}}`,
		`{"a\"b":1,"c`:    `{"a\"b":1}`,
		`{"a":1`:          `{"a":1}`,
		`{"a`:             `{}`,
		`{"a":1}`:         `{"a":1}`,
		`[{"a":1},{"b":1`: `[{"a":1},{"b":1`,
	} {
		t.Run(body, func(t *testing.T) { assert.Equal(t, want, string(CutObject([]byte(body)))) })
	}
}

// GitLab sends one event id for all tags that were pushed together.
func TestTagsOfOneEvent(t *testing.T) {
	ids := map[string]bool{}
	for _, tag := range []string{"v1", "v2"} {
		body := `{"object_kind":"tag_push","after":"1111111111111111111111111111111111111111","ref":"refs/tags/` + tag + `","project":{"web_url":"https://x/y/z"}}`
		r, err := Parse(http.Header{"X-Gitlab-Event": {"Tag Push Hook"}, "X-Gitlab-Event-Uuid": {"one"}}, []byte(body))
		require.NoError(t, err)
		ids[r.ID] = true
	}
	assert.Len(t, ids, 2)
}

func TestInvalidDeliveryID(t *testing.T) {
	for _, id := range []string{"", "a b", "ä", strings.Repeat("x", 101), "a\x7f"} {
		t.Run(fmt.Sprintf("%.20q", id), func(t *testing.T) {
			r, err := Parse(http.Header{"X-Github-Event": {"ping"}, "X-Github-Delivery": {id}}, nil)
			require.NoError(t, err)
			assert.Empty(t, r.ID)
		})
	}
}

func TestBodyErrors(t *testing.T) {
	for name, c := range map[string]struct {
		header http.Header
		body   string
		want   string
	}{
		"notification of Argo CD": {nil, `{"app": {"metadata": {}}}`, `unknown field "app"`},
		"misspelled field":        {nil, `{"reff": "v1"}`, `unknown field "reff": the fields are ref, commit, id and source`},
		"Azure's minimal details": {http.Header{"X-Vss-Activityid": {"x"}}, `{"eventType":"git.push","resource":{"url":"https://dev.azure.com/x","pushId":14}}`, `"Resource details to send"`},
		"form instead of JSON":    {http.Header{"X-Github-Event": {"push"}, "Content-Type": {"application/x-www-form-urlencoded"}}, "payload=%7B%7D", "application/json"},
		"number as ref":           {nil, `{"ref": 1.10}`, "1.10 becomes 1.1"},
		"null":                    {nil, `{"ref": null}`, "null"},
		"not UTF-8":               {nil, "{\"ref\": \"\xff\"}", "UTF-8"},
		"event header is missing": {nil, `{"ref":"refs/heads/main","repository":{}}`, "git host"},
		"no address":              {http.Header{"X-Github-Event": {"push"}}, `{"ref":"refs/heads/main","after":"1111111111111111111111111111111111111111"}`, "clone_url"},
		"no full ref name":        {http.Header{"X-Github-Event": {"push"}}, `{"ref":"main","after":"1111111111111111111111111111111111111111"}`, "full name"},
		"truncated object":        {nil, `{"ref": "x"`, "unexpected end"},
		"two bodies":              {nil, `{} {}`, "after top-level value"},
		"a commit without a ref":  {nil, `{"commit":"1111111111111111111111111111111111111111"}`, "commit is set without ref"},
		"short commit":            {nil, `{"ref":"v1","commit":"1111111"}`, "40"},
		"empty commit":            {nil, `{"ref":"v1","commit":""}`, "commit is empty"},
		"null commit":             {nil, `{"ref":"v1","commit":null}`, "commit must be a string"},
		"zero commit":             {nil, `{"ref":"v1","commit":"0000000000000000000000000000000000000000"}`, "not a commit"},
		"a long ref": {http.Header{"X-Github-Event": {"push"}}, `{"ref":"refs/tags/` + strings.Repeat("x", maxRef) +
			`","after":"1111111111111111111111111111111111111111","repository":{"clone_url":"https://x/y/z"}}`, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.header, []byte(c.body))
			assert.ErrorContains(t, err, c.want)
		})
	}
	many := `{"push":{"changes":[` + strings.Repeat(`{"new":{"type":"branch","name":"x"}},`, maxRefs+1) + `{}]},"repository":{"links":{"html":{"href":"https://x/y/z"}}}}`
	_, err := Parse(http.Header{"X-Event-Key": {"repo:push"}}, []byte(many))
	assert.ErrorContains(t, err, "refs")
}

// R1: a list of tiny items takes little memory.
func TestLongListsTakeLittleMemory(t *testing.T) {
	long := strings.Repeat("{},", 340_000) + "{}"
	for name, c := range map[string]struct {
		header http.Header
		body   string
	}{
		"Azure":                 {http.Header{"X-Vss-Activityid": {"x"}}, `{"eventType":"git.push","resource":{"refUpdates":[` + long + `]}}`},
		"Bitbucket Cloud":       {http.Header{"X-Event-Key": {"repo:push"}}, `{"push":{"changes":[` + long + `]}}`},
		"Bitbucket Data Center": {http.Header{"X-Event-Key": {"repo:refs_changed"}}, `{"changes":[` + long + `]}`},
		"links":                 {http.Header{"X-Event-Key": {"repo:refs_changed"}}, `{"repository":{"links":{"clone":[` + long + `]}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			body := []byte(c.body)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r, err := Parse(c.header, body)
			runtime.ReadMemStats(&after)
			assert.True(t, err != nil || r.Kind == KindNothing)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20))
		})
	}
}

func TestRepositoryAddresses(t *testing.T) {
	for address, repo := range map[string]string{
		"https://github.com/Plant-North/Line.git":                   "git@github.com:plant-north/line",
		"ssh://git@bitbucket.plant.example:7999/north/line.git":     "ssh://git@bitbucket.plant.example/north/line",
		"https://north@dev.azure.com/north/Area%201/_git/Line":      "git@ssh.dev.azure.com:v3/north/Area 1/Line",
		"https://north.visualstudio.com/DefaultCollection/A/_git/L": "https://dev.azure.com/north/A/_git/L",
		"https://dev.azure.com/north/_git/Line":                     "https://dev.azure.com/north/Line/_git/Line",
		"https://north.visualstudio.com/_git/Line":                  "ssh://git@ssh.dev.azure.com/v3/north/Line/Line",
		"https://user:password@gitlab.plant.example/a/b/c.git":      "https://gitlab.plant.example/a/b/c",
		"http://git.plant.example:3000/north/line.git":              "ssh://git@git.plant.example:2222/north/line.git",
	} {
		t.Run(address, func(t *testing.T) {
			assert.True(t, Repository{Address: address}.Is(repo), "%s is %s", address, repo)
			assert.True(t, Repository{Address: repo}.Is(address), "%s is %s", repo, address)
		})
	}
	for address, repo := range map[string]string{
		"https://.*/":                                    "https://github.com/a/b",
		"https://github.com/.*":                          "https://github.com/a/b",
		"https://github.com/a/b":                         "https://github.com/a/b2",
		"https://github.com.evil.example/a/b":            "https://github.com/a/b",
		"https://evil.example/github.com/a/b":            "https://github.com/a/b",
		"https://evil.example/?x=https://github.com/a/b": "https://github.com/a/b",
		"":                                     "https://github.com/a/b",
		"a/b":                                  "https://github.com/a/b",
		"\x00":                                 "\x00",
		"javascript:a/b":                       "javascript:a/c",
		"https://dev.azure.com/north/A/_git/L": "https://dev.azure.com/north/B/_git/L",
	} {
		t.Run(fmt.Sprintf("%q", address), func(t *testing.T) {
			assert.False(t, Repository{Address: address}.Is(repo), "%s is not %s", address, repo)
		})
	}
	assert.True(t, Repository{Path: "NORTH/line"}.Is("https://bitbucket.plant.example/scm/north/line.git"))
	assert.True(t, Repository{Path: "NORTH/line"}.Is("ssh://git@bitbucket.plant.example:7999/north/line.git"))
	for _, path := range []string{"", "line", "/line", "x/north/line", "orth/line", "NORTH/lin"} {
		t.Run(path, func(t *testing.T) {
			assert.False(t, Repository{Path: path}.Is("https://bitbucket.plant.example/scm/north/line.git"))
		})
	}
}

var update = flag.Bool("update", false, "write the table of senders in docs/how-to/webhooks.md")

func TestDocumentedSenders(t *testing.T) {
	const page, begin, end = "../../docs/how-to/webhooks.md", "<!-- senders: begin -->\n", "<!-- senders: end -->\n"
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(raw), begin)
	require.True(t, found)
	is, after, found := strings.Cut(rest, end)
	require.True(t, found)
	table := "| sender | recognized by | shows its secret with | sends |\n|---|---|---|---|\n"
	for _, s := range All() {
		if s.Proof == "" {
			continue
		}
		by := "`source` in the body"
		if s.Headers != nil {
			by = "`" + strings.Join(s.Headers, "`, `") + "`"
		} else if s.Name == Generic {
			by = "anything else"
		}
		table += "| `" + s.Name + "` | " + by + " | " + s.Proof + " | " + s.Deliveries + " |\n"
	}
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(before+begin+table+end+after), 0o644))
		return
	}
	assert.Equal(t, table, is, "run go test ./internal/sender -update")
}

// check parses a delivery, and fails the test if the error or the Request is not as callers rely on it.
func check(t *testing.T, h http.Header, body []byte) {
	t.Helper()
	r, err := Parse(h, body)
	if err != nil {
		if _, ok := errors.AsType[*InvalidError](err); !ok || len(err.Error()) > 600 {
			t.Fatalf("%T: %v", err, err)
		}
		return
	}
	if from := senderOf(h); from.Name != Generic && (r.Kind == KindRequest || r.Ref != "") {
		t.Fatalf("a delivery of a git host became a request for a ref: %+v", r)
	}
	for _, ref := range r.Refs {
		if !strings.HasPrefix(ref, "refs/") {
			t.Fatalf("%q is not a full ref name", ref)
		}
	}
	if len(r.ID) > 100 && r.Kind != KindRequest {
		t.Fatal("the id exceeds its limit")
	}
	for _, repository := range r.Repositories {
		_ = repository.Is("https://git.plant.example/north/line.git")
	}
}

// FuzzParse fuzzes the parser of the sender of an event header, or of the generic format.
func FuzzParse(f *testing.F) {
	headers := []string{"X-Nothing"}
	for _, s := range All() {
		headers = append(headers, s.Headers...)
	}
	for _, d := range deliveries(f) {
		seeded := false
		for i, header := range headers {
			if event := d.header().Get(header); event != "" {
				f.Add(byte(i), event, []byte(d.Body))
				seeded = true
			}
		}
		if !seeded {
			f.Add(byte(0), "", []byte(d.Body))
		}
	}
	f.Fuzz(func(t *testing.T, which byte, event string, body []byte) {
		h := http.Header{}
		h.Set(headers[int(which)%len(headers)], event)
		check(t, h, body)
	})
}
