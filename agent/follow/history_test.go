package follow

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	gosync "sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// secondTime serves a GatewaySync of generation 2 as generation 1, as if the API server had been restored from a backup and
// counted that generation again.
type secondTime struct {
	next http.RoundTripper
	mu   gosync.Mutex
	gets int
}

func (s *secondTime) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := s.next.RoundTrip(r)
	if err != nil || !strings.HasSuffix(r.URL.Path, "/gatewaysyncs/"+crName) {
		return answer, err
	}
	s.mu.Lock()
	s.gets++
	s.mu.Unlock()
	body, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return nil, err
	}
	body = bytes.Replace(body, []byte(`"generation":2`), []byte(`"generation":1`), 1)
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return answer, nil
}

func (s *secondTime) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gets
}

func TestGenerationOfRecreatedGatewaySync(t *testing.T) {
	renewed := func(s *v1alpha1.SyncTargetSpec) { now := metav1.NowMicro(); s.Lead.Renewed = &now }
	for name, happens := range map[string]func(*world, *Follower){
		"after the API server was away": func(w *world, f *Follower) {
			f.targets.failed(errors.New("connection refused"))
			w.lead(renewed)
		},
		"after the revision decreased": func(w *world, _ *Follower) {
			w.lead(func(s *v1alpha1.SyncTargetSpec) { s.Revision -= 3 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onSharedCluster(t)
			p := w.pod("line-0")
			first := w.commit("one")
			w.gatewaySync(p)
			w.lead(targetCommit(first), func(s *v1alpha1.SyncTargetSpec) { s.Revision = 7 })
			api := &secondTime{}
			config := w.cluster.RESTConfig()
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { api.next = next; return api })
			clients, err := kube.ConnectTo(config, "stoker-agent/test")
			require.NoError(t, err)
			a := p.start(func(c *Config) { c.API = clients.Dynamic })
			p.awaitSynced(first, "one")
			looks := func() {
				t.Helper()
				for range 2 {
					turns := gathered(t, a, "stoker_reconcile_total")
					a.follower.wake()
					eventually(t, "one more iteration", func() bool { return gathered(t, a, "stoker_reconcile_total") > turns })
				}
			}

			heard := a.follower.targets.currentEpoch()
			was := a.follower.State().Of.Connections.Remote
			happens(w, a.follower)
			eventually(t, "the epoch increases", func() bool { return a.follower.targets.currentEpoch() > heard })
			looks()
			assert.Equal(t, 3, api.count(), "one read at the start, and one of the spec in each epoch")
			assert.Same(t, was, a.follower.State().Of.Connections.Remote, "the agent keeps the connection of an unchanged spec")

			w.edit(func(gs *v1alpha1.GatewaySync) {
				gs.Spec.Sync.Profiles["default"] = v1alpha1.SyncProfile{Mappings: []v1alpha1.Mapping{{Source: "other/projects", Destination: "projects"}}}
			})
			happens(w, a.follower)
			eventually(t, "the agent follows the new spec", func() bool { return p.title() == "one of other" })
			p.awaitSynced(first, "one of other")
			looks()
			assert.Equal(t, 4, api.count())
		})
	}
}
