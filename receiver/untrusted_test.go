package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/limit"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/fleet/plant"
)

// line creates the GatewaySync line, without agents, and the permissions of the receiver. It returns their namespace.
func line(t *testing.T, cluster *kubetest.Cluster) (namespace string) {
	t.Helper()
	namespace = cluster.Namespace(t)
	install(t, cluster)
	grant(t, cluster, namespace)
	cluster.ApplyYAML(t, namespace, `
apiVersion: stoker.io/v1alpha1
kind: GatewaySync
metadata: {name: line}
spec: {git: {repo: "https://git.example.com/plant/line.git", ref: main}, webhook: {secretRef: {name: stoker-webhook, key: secret}}}
`)
	return namespace
}

// from returns a dialer with another local address of this machine.
func from(address string) net.Dialer {
	return net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: time.Minute}
}

// strangers is the number of connections that one address opens.
const strangers = 10000

// R1: bodies without an end, headers and bodies that never complete, thousands of connections. Memory stays bounded, health
// answers, and senders with the secret are served meanwhile.
func TestR1UnauthenticatedLoad(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	namespace := line(t, cluster)
	r := start(t, cluster)
	address := strings.TrimPrefix(r.url, "http://")
	path := "/webhook/" + namespace + "/line"
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	// A sender with the secret may have to retry because the API server of a busy machine is slow, but never because strangers
	// occupy the receiver.
	right := func() {
		for _, size := range []int{0, 40 << 10} {
			t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
				code, said := http.StatusServiceUnavailable, []byte{}
				for tries := 0; code == http.StatusServiceUnavailable && tries < 10; tries++ {
					res, err := client.Do(paddedPushRequest(r.url+path, "https://git.example.com/plant/line", webhookSecret, "d", strings.Repeat("x", size)))
					require.NoError(t, err)
					code = res.StatusCode
					said, err = io.ReadAll(res.Body)
					require.NoError(t, err)
					require.NoError(t, res.Body.Close())
					require.NotContains(t, string(said), limit.ErrBusy.Error())
				}
				assert.Equal(t, http.StatusAccepted, code, "%d bytes: %s", size, said)
			})
		}
		assert.Equal(t, http.StatusOK, r.code(r.health+"/healthz"))
	}
	right()
	before, _ := r.memory()

	// The receiver must stop reading a chunked body of one GiB at its limit.
	var sent atomic.Int64
	endless := func(credential string) int {
		body := io.LimitReader(&zeros{&sent}, 1<<30)
		req, err := http.NewRequest(http.MethodPost, r.url+path, io.NopCloser(body))
		require.NoError(t, err)
		if credential != "" {
			req.Header.Set("X-Hub-Signature-256", credential)
		}
		res, err := client.Do(req)
		if err != nil {
			return 0 // the receiver answered and closed the connection early
		}
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() { // 400 is possible because the body may time out on a busy machine
			assert.Contains(t, []int{http.StatusRequestEntityTooLarge, http.StatusServiceUnavailable, http.StatusBadRequest, 0}, endless("sha256="+strings.Repeat("a", 64)))
		})
	}
	all.Wait()
	assert.Contains(t, []int{http.StatusUnauthorized, http.StatusServiceUnavailable, 0}, endless(""))
	assert.Less(t, sent.Load(), int64(41*(limit.MaxStream+8<<20)), "the receiver must stop reading the body")
	res, err := client.Do(&http.Request{Method: http.MethodPost, URL: mustURL(t, r.url+path), ContentLength: 1 << 30, Body: io.NopCloser(io.LimitReader(&zeros{&sent}, 1<<30)), Header: http.Header{}})
	if err == nil {
		assert.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
		require.NoError(t, res.Body.Close())
	}
	right()

	// Connections from one address that send nothing or never complete a request.
	stranger := from("127.0.0.2")
	var closed atomic.Int64
	health := r.poll("/healthz")
	began := time.Now()
	for i := range strangers {
		c, err := stranger.DialContext(t.Context(), "tcp", address)
		require.NoError(t, err)
		all.Go(func() {
			defer c.Close()
			switch i % 3 {
			case 0:
				_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nX-Slow: ", path)
			case 1:
				_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nX-Hub-Signature-256: sha256=%s\r\n\r\n{", path, strings.Repeat("a", 64))
			case 2: // occupies a slot for large bodies
				_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nX-Hub-Signature-256: sha256=%s\r\n\r\n%s", path, strings.Repeat("a", 64), strings.Repeat("x", 40<<10))
			}
			_ = c.SetReadDeadline(time.Now().Add(time.Minute))
			_, err := io.Copy(io.Discard, bufio.NewReader(c))
			if !os.IsTimeout(err) {
				closed.Add(1)
			}
		})
		if i%2000 == 1999 {
			right()
		}
	}
	right()
	all.Wait()
	times := health()
	slices.Sort(times)
	t.Logf("%d health checks: median %s, maximum %s", len(times), times[len(times)/2], times[len(times)-1])
	assert.Less(t, times[len(times)/2], time.Second, "the median of the health checks is too slow, even on a shared machine")
	t.Logf("%d connections were closed within %s", closed.Load(), time.Since(began))
	assert.Equal(t, int64(strangers), closed.Load(), "the receiver must close each connection within a minute")

	large, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer large.Close()
	_, _ = fmt.Fprintf(large, "POST %s HTTP/1.1\r\nHost: x\r\nX-Large: %s\r\n\r\n", path, strings.Repeat("x", 64<<10))
	answer, err := http.ReadResponse(bufio.NewReader(large), nil)
	if err == nil {
		assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, answer.StatusCode)
		require.NoError(t, answer.Body.Close())
	}
	right()
	_, peak := r.memory()
	t.Logf("memory: %d KiB before, %d KiB at most", before>>10, peak>>10)
	assert.Less(t, peak-before, 32<<20)
}

// poll requests a page of the health port repeatedly. The returned function stops this and returns the response times.
func (r *replica) poll(page string) (end func() []time.Duration) {
	var times []time.Duration
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			began := time.Now()
			assert.Equal(r.t, http.StatusOK, r.code(r.health+page))
			times = append(times, time.Since(began))
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() []time.Duration {
		close(stop)
		<-done
		return times
	}
}

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	require.NoError(t, err)
	return u
}

type zeros struct{ sent *atomic.Int64 }

func (z *zeros) Read(b []byte) (int, error) {
	z.sent.Add(int64(len(b)))
	return len(b), nil
}

// A request answered with 202 must be in the object, even if the receiver is killed.
func TestAcceptedRequestsSurviveShutdown(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Control(t)
	namespace := line(t, cluster)
	admin, err := kube.ConnectTo(cluster.RESTConfig(), "test")
	require.NoError(t, err)
	for name, end := range map[string]syscall.Signal{"terminated": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			r := start(t, cluster)
			client := &http.Client{Timeout: time.Minute}
			var mu sync.Mutex
			sent, last, done := 0, 0, make(chan struct{})
			go func() {
				defer close(done)
				for i := 1; ; i++ {
					req, err := http.NewRequest(http.MethodPost, r.url+"/webhook/"+namespace+"/line", strings.NewReader(fmt.Sprintf(`{"ref":"v%d"}`, i)))
					assert.NoError(t, err)
					req.Header.Set("Authorization", "Bearer "+webhookSecret)
					sent = i
					res, err := client.Do(req)
					if err != nil {
						return
					}
					_ = res.Body.Close()
					if res.StatusCode == http.StatusAccepted {
						mu.Lock()
						last = i
						mu.Unlock()
					}
				}
			}()
			require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return last > 20 }, time.Minute, time.Millisecond)
			began := time.Now()
			ended := r.End(t, end)
			<-done
			if end == syscall.SIGTERM {
				assert.NoError(t, ended, r.Log.String())
				assert.Less(t, time.Since(began), 2*drainTimeout, "the shutdown must fit into the grace period of the pod")
			}
			gs, err := kube.GatewaySyncs(admin.Dynamic, namespace).Get(t.Context(), "line")
			require.NoError(t, err)
			written, err := strconv.Atoi(strings.TrimPrefix(gs.Annotations[v1alpha1.AnnotationRequestedRef], "v"))
			require.NoError(t, err)
			assert.GreaterOrEqual(t, written, last)
			assert.LessOrEqual(t, written, sent, "only requests that were sent may be written")
		})
	}
}

// burst is the number of pushes, and senders how many are sent at a time.
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
