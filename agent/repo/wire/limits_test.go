package wire

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/agent/repo/repotest"
	"stoker.io/stoker/agent/repo/store"
	"stoker.io/stoker/api/v1alpha1"
)

// F11: a server cannot make the client read without limit.
func TestAdvertisementLimits(t *testing.T) {
	g := newSite(t)
	g.Push("first", repotest.Views(1))
	for i := range 30 {
		g.Tag(fmt.Sprintf("t%d", i), g.Head())
	}
	for name, o := range map[string]Options{
		"too many refs":  {MaxRefs: 20},
		"too many bytes": {MaxBytes: 500},
	} {
		t.Run(name+" is LimitExceeded", func(t *testing.T) {
			_, err := newClient(t, g.url(), Auth{}, o).Resolve(t.Context(), "main")
			repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
		})
	}
	t.Run("a pack of too many bytes is LimitExceeded", func(t *testing.T) {
		r := newClient(t, g.url(), Auth{}, Options{MaxBytes: 10_000})
		g.Push("big", repotest.Views(300))
		res, err := r.Resolve(t.Context(), "main")
		require.NoError(t, err)
		_, err = openStore(t, store.Options{}).Fetch(t.Context(), r, res.Commit, res.Ref)
		repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
	})
}

// A server that lists shallow commits without end would fill the memory before the pack begins.
func TestNegotiationLimit(t *testing.T) {
	g := newSite(t)
	commit := g.Push("first", repotest.Views(1))
	var sent atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			fmt.Fprintf(w, "001e# service=git-upload-pack\n0000%s0000", pktLine(commit.String()+" refs/heads/main\x00shallow allow-reachable-sha1-in-want\n"))
			return
		}
		w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		lines := strings.Repeat(pktLine("shallow "+commit.String()), 1000)
		for range 2 * maxNegotiation / len(lines) {
			n, err := io.WriteString(w, lines)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	defer front.Close()
	_, err := openStore(t, store.Options{}).Fetch(t.Context(), newClient(t, parseURL(t, front.URL+"/site.git"), Auth{}, Options{}), commit, "refs/heads/main")
	repotest.RequireReason(t, v1alpha1.ReasonLimitExceeded, err)
	assert.Greater(t, sent.Load(), int64(maxNegotiation))
}

func pktLine(text string) string { return fmt.Sprintf("%04x%s", len(text)+4, text) }
