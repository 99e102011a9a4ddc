package sender

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"stoker.io/stoker/api/v1alpha1"
)

// fuzz fuzzes the parser of one sender. The seed corpus is its deliveries in testdata.
func fuzz(f *testing.F, sender, header string) {
	for _, d := range deliveries(f) {
		if d.Want.Sender == sender || sender == Generic && d.Want.Kind == Ask {
			f.Add(d.Header[header], []byte(d.Body))
		}
	}
	f.Fuzz(func(t *testing.T, event string, body []byte) {
		h := http.Header{}
		h.Set(header, event)
		r, err := Parse(h, body)
		if err != nil {
			if _, ok := errors.AsType[*InvalidError](err); !ok || len(err.Error()) > 600 {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if sender != Generic && event != "" && (r.Kind == Ask || r.Ref != "" || r.Commits != nil) {
			t.Fatalf("a git host asks for a ref: %+v", r)
		}
		for _, ref := range r.Refs {
			if !strings.HasPrefix(ref, "refs/") {
				t.Fatalf("%q is no full name", ref)
			}
		}
		if len(r.ID) > 100 && r.Kind != Ask {
			t.Fatal("the id is too long")
		}
		for _, repository := range r.Repositories {
			_ = repository.Is("https://git.plant.example/north/line.git")
		}
		if ref, _, _, err := r.Choose(v1alpha1.GitSpec{Repo: "https://git.plant.example/north/line.git"}); err == nil && ref != "" && !strings.Contains(string(body), `"`) {
			t.Fatalf("%q comes from nowhere", ref)
		}
	})
}

func FuzzGitHub(f *testing.F) { fuzz(f, GitHub, "X-Github-Event") }

func FuzzGitLab(f *testing.F) { fuzz(f, GitLab, "X-Gitlab-Event") }

func FuzzGitea(f *testing.F) { fuzz(f, Gitea, "X-Gitea-Event") }

func FuzzBitbucket(f *testing.F) { fuzz(f, Bitbucket, "X-Event-Key") }

func FuzzAzureDevOps(f *testing.F) { fuzz(f, AzureDevOps, "X-Vss-Activityid") }

func FuzzGeneric(f *testing.F) { fuzz(f, Generic, "X-Nothing") }
