package main

import (
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/fleet/plant"
)

const burst, senders = 10000, 700

// R6: ten thousand simultaneous pushes to two replicas, with a real fleet that does not poll. Each gateway syncs at most twice,
// once per commit. The last push must not be lost, health must answer all the time, and memory must stay bounded.
func TestR6PushBurst(t *testing.T) {
	t.Parallel()
	p := plant.New(t, 2, onlyByWebhook)
	install(t, p.Cluster)
	grant(t, p.Cluster, p.Namespace)
	replicas := []*replica{start(t, p.Cluster), start(t, p.Cluster, "--watch-namespace="+p.Namespace)}
	p.Start()
	p.Converges("first", p.First)
	scans := map[string]int{}
	for _, g := range p.Gateways() {
		scans[g.Name] = g.Simulator.Scans.Completed("projects")
	}
	p.Push("second")
	seen := p.Watch()
	before := map[*replica]int{}
	for _, r := range replicas {
		before[r], _ = r.memory()
	}

	var accepted, refused, again, other atomic.Int64
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: maxAddressConnections - 16, MaxConnsPerHost: maxAddressConnections - 16}}
	var slowest atomic.Int64
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			for _, r := range replicas {
				began := time.Now()
				assert.Equal(t, http.StatusOK, r.code(r.health+"/healthz"))
				slowest.Store(max(slowest.Load(), int64(time.Since(began))))
			}
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	repository := p.GatewaySync().Spec.Git.Repo
	began := time.Now()
	work := make(chan int)
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for i := range work {
				key := webhookSecret
				if i%10 == 5 {
					key = "wrong"
				}
				send := func() int {
					res, err := client.Do(pushRequest(replicas[i%2].url+"/webhook/"+p.Namespace+"/"+p.Name, repository, key, fmt.Sprintf("d-%d", i)))
					if err != nil {
						return 0
					}
					_, _ = io.Copy(io.Discard, res.Body) // only the status code matters
					_ = res.Body.Close()
					return res.StatusCode
				}
				code := send()
				for until := time.Now().Add(plant.Liveness); code == http.StatusServiceUnavailable && time.Now().Before(until); { // API server busy
					again.Add(1)
					code = send()
				}
				switch code {
				case http.StatusAccepted:
					accepted.Add(1)
				case http.StatusUnauthorized:
					refused.Add(1)
				default:
					t.Logf("request %d was answered with %d", i, code)
					other.Add(1)
				}
			}
		})
	}
	third := ""
	for i := range burst {
		if i == burst-1 {
			third = p.Push("third") // the last push announces this commit
		}
		work <- i
	}
	close(work)
	all.Wait()
	took := time.Since(began)
	close(stop)
	<-watched
	p.Converges("third", third)

	asked := map[string]bool{}
	for _, gs := range seen() {
		asked[gs.Annotations[v1alpha1.AnnotationRequestedAt]] = true
	}
	t.Logf("%d accepted, %d refused, %d else, %d sent again in %s; %d writes; health took %s at most", accepted.Load(), refused.Load(), other.Load(), again.Load(), took, len(asked), time.Duration(slowest.Load()))
	assert.EqualValues(t, burst, accepted.Load()+refused.Load()+other.Load())
	assert.Zero(t, other.Load(), "every sender must get the outcome or a request to retry")
	for _, g := range p.Gateways() {
		assert.LessOrEqual(t, g.Simulator.Scans.Completed("projects")-scans[g.Name], 2, "%s: more than one sync for each commit", g.Name)
	}
	assert.Less(t, len(asked), burst/20, "the requests must be coalesced into few writes")
	for _, r := range replicas {
		_, peak := r.memory()
		t.Logf("memory: %d KiB before, %d KiB at most", before[r]>>10, peak>>10)
		assert.Less(t, peak-before[r], 32<<20)
		require.NotContains(t, r.Log.String(), "S3CR3T", "C7")
		require.NotContains(t, r.Log.String(), "panic")
	}
}
