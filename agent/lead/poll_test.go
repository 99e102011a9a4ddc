package lead

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
)

// The commit of an artifact is known when its layer has arrived, which takes longer than an answer of git.
func TestPollLimit(t *testing.T) {
	for address, c := range map[string]struct {
		limit time.Duration
		says  string
	}{
		"https://git.example.com/plants/line.git": {5 * time.Minute, "git did not answer within 5m0s"},
		"oci://registry.example.com/plants/line":  {30 * time.Minute, "the layer did not arrive within 30m0s"},
		"oci+http://127.0.0.1:5000/plants/line":   {30 * time.Minute, "the layer did not arrive within 30m0s"},
	} {
		t.Run(address, func(t *testing.T) {
			limit, late := pollLimit(address)
			assert.Equal(t, c.limit, limit)
			assert.ErrorContains(t, late, c.says)
		})
	}
}

// A download of a layer does not keep the fleet from another ref that is desired meanwhile. A poll of git goes on, because it is short.
func TestPollIsAbandoned(t *testing.T) {
	for repository, within := range map[string]time.Duration{"oci://registry.example.com/plants/line": 10 * time.Second, "https://git.example.com/line.git": maxDownload} {
		t.Run(repository, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPaper(t, 1)
				p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Repo, gs.Spec.Git.Ref = repository, "slow" })
				began := time.Now()
				var asked []time.Duration
				p.leadWith(func(ctx context.Context, gs *v1alpha1.GatewaySync, q question) pollResult {
					asked = append(asked, time.Since(began))
					f := pollResult{question: q, desired: gs.Spec.Git.Ref, commit: strings.Repeat("1", 40)}
					if gs.Spec.Git.Ref == "slow" {
						select {
						case <-ctx.Done():
							f.err = ctx.Err()
						case <-time.After(20 * time.Minute):
						}
					}
					return f
				}, func() {
					time.Sleep(time.Minute)
					p.change(func(gs *v1alpha1.GatewaySync) { gs.Spec.Git.Ref, gs.Generation = "quick", gs.Generation+1 })
					time.Sleep(maxDownload)
				})
				require.GreaterOrEqual(t, len(asked), 2)
				assert.Less(t, asked[1]-time.Minute, within)
				assert.Equal(t, within < time.Minute, asked[1] < 10*time.Minute)
			})
		})
	}
}
