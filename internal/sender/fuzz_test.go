package sender

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

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
