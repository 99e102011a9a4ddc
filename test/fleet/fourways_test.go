package fleet

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/test/fleet/door"
	"stoker.io/stoker/test/fleet/plant"
)

// ways are the four ways in which a version is asked for, each with the rights and the means that it has in a cluster.
type ways struct {
	*plant.Plant
	t      *testing.T
	door   *door.Door
	titles map[string]string // of each commit, by its id

	newest int            // promotion
	spec   map[string]any // of the object, as Argo CD's repository has it
	plain  bool           // Argo CD applies at the client's side

	mu   sync.Mutex
	said []string // what was done, for who reads a failure
}

// The refs that there are: both branches move, the tags stay.
var (
	branches = []string{"main", "release"}
	tags     = []string{"v1", "v2", "v3"}
)

func newWays(t *testing.T, p *plant.Plant) *ways {
	t.Helper()
	w := &ways{Plant: p, t: t, titles: map[string]string{p.First: "first"}}
	for _, tag := range tags {
		w.Tag(tag, w.push("main"))
	}
	w.Branch("release", p.First)
	w.door = door.Open(t, p)
	raw, err := json.Marshal(p.GatewaySync().Spec)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &w.spec))
	return w
}

func (w *ways) did(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// push is somebody who works on a branch.
func (w *ways) push(branch string) string {
	title := "n" + strconv.Itoa(len(w.titles))
	w.Checkout(branch)
	commit := w.Push(title)
	w.titles[commit] = title
	w.did("push %s to %s: %s", title, branch, commit[:7])
	return commit
}

// apply is Argo CD: the object is made what git says, also where nothing has changed, as its self-heal does. At the client's
// side it merges what changed since it applied last, which it keeps in an annotation; at the server's side it owns its
// fields.
func (w *ways) apply(ref string) error {
	w.spec["git"].(map[string]any)["ref"] = ref
	w.did("argo cd applies %s", ref)
	manifest := map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "GatewaySync", "spec": w.spec,
		"metadata": map[string]any{"name": w.Name, "namespace": w.Namespace}}
	applied, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	kind, options := types.ApplyPatchType, metav1.PatchOptions{FieldManager: "argocd-controller", Force: new(true)}
	if w.plain {
		kind, options = types.MergePatchType, metav1.PatchOptions{FieldManager: "argocd-controller"}
		manifest["metadata"] = map[string]any{"annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": string(applied)}}
		if applied, err = json.Marshal(manifest); err != nil {
			return err
		}
	}
	_, err = kube.GatewaySyncs(w.Kube.Dynamic, w.Namespace).Patch(w.t.Context(), w.Name, kind, applied, options)
	return err
}

// fresh is the age of a new promotion.
const fresh = -1

// promote is Kargo, by the receiver: a new promotion, the last one once more after its controller was restarted, or an old one that is sent
// again: age is how many promotions are newer than it.
func (w *ways) promote(ref string, age int) error {
	if age == fresh || w.newest == 0 {
		w.newest++
		age = 0
	}
	newest := w.newest
	n := max(newest-age, 1)
	id := fmt.Sprintf("test.01hv%022d.f%d", n, n)
	answer, err := w.door.Ask(w.t.Context(), "kargo", id, ref)
	if err != nil {
		return err
	}
	w.did("kargo promotes %s as %d of %d: %s", ref, n, newest, answer.Result)
	if want := map[bool]int{true: http.StatusConflict, false: http.StatusAccepted}[n < newest]; answer.Code != want {
		return fmt.Errorf("promotion %d of %d: %d instead of %d: %s", n, newest, answer.Code, want, answer.Message)
	}
	return nil
}

// annotate is a person with kubectl: one annotation, and nothing beside it.
func (w *ways) annotate(name, value string) error {
	w.did("kubectl annotate %s=%s", name, value)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{name: value}}})
	if err != nil {
		return err
	}
	_, err = kube.GatewaySyncs(w.Kube.Dynamic, w.Namespace).Patch(w.t.Context(), w.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-annotate"})
	return err
}

// race lets all four do what they like at the same time.
func (w *ways) race(seed uint64, actions int) {
	w.t.Helper()
	all := slices.Concat(branches, tags)
	four := []func(r *rand.Rand) error{
		func(r *rand.Rand) error { return w.apply(all[r.IntN(len(all))]) },
		func(r *rand.Rand) error { return w.promote(tags[r.IntN(len(tags))], max(r.IntN(9)-6, fresh)) },
		func(r *rand.Rand) error { w.push(branches[r.IntN(len(branches))]); return nil },
		func(r *rand.Rand) error {
			if r.IntN(3) == 0 {
				return w.annotate(v1alpha1.AnnotationRequestedAt, time.Now().UTC().Format(time.RFC3339Nano))
			}
			return w.annotate(v1alpha1.AnnotationRequestedRef, all[r.IntN(len(all))])
		},
	}
	var running sync.WaitGroup
	errs := make([]error, len(four))
	for i, act := range four {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		running.Go(func() {
			for range actions {
				time.Sleep(time.Duration(r.IntN(150)) * time.Millisecond)
				if errs[i] = act(r); errs[i] != nil {
					return
				}
			}
		})
	}
	running.Wait()
	for _, err := range errs {
		require.NoError(w.t, err)
	}
}

// settles waits until the fleet runs what the object asks for, and returns it.
func (w *ways) settles() v1alpha1.Desired {
	w.t.Helper()
	var want v1alpha1.Desired
	w.Eventually("the fleet runs what the object asks for", func() bool {
		gs := w.GatewaySync()
		d, err := v1alpha1.DesiredRef(gs, "")
		if err != nil || gs.Status.Target == nil {
			return false
		}
		want = d
		commit := w.Repo.Git("rev-parse", d.Ref+"^{commit}")
		if gs.Status.Target.Ref != d.Ref || !w.Ready(commit) || gs.Status.LastHandledRequest != d.RequestedAt {
			return false
		}
		for _, g := range w.Gateways() {
			if g.Title() != w.titles[commit] {
				return false
			}
		}
		return true
	})
	return want
}

// seedVariable repeats a race.
const seedVariable = "STOKER_RACE_SEED"

// The four ways in race against each other, and each status follows the rules; when they stop, the fleet comes to what
// they left, and the next change of the spec wins without anybody clearing anything.
func TestFourWaysInRaceAndTheRulesHold(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if given := os.Getenv(seedVariable); given != "" {
		var err error
		seed, err = strconv.ParseUint(given, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("%s=%d repeats it", seedVariable, seed)
	p := plant.New(t, 3, door.Locked)
	w := newWays(t, p)
	judge := newWitness(w)
	seen := p.Watch(judge.see)
	p.Start()
	p.Converges(w.titles[w.Head()], w.Head())
	defer func() {
		if t.Failed() {
			for _, line := range w.said {
				t.Log(line)
			}
		}
	}()
	for round := range uint64(3) {
		w.plain = round%2 == 1
		w.race(seed+round, 8)
		d := w.settles()
		w.did("round %d ends with %s (override: %t)", round, d.Ref, d.Override)
	}

	// A → B → A: what is asked for over A is dead once B was there.
	require.NoError(t, w.apply("main"))
	w.settles()
	require.NoError(t, w.promote("v1", fresh))
	require.NoError(t, w.annotate(v1alpha1.AnnotationRequestedRef, "v2"))
	require.Equal(t, "v2", w.settles().Ref, "the last request over today's spec")
	require.NoError(t, w.apply("release"))
	require.Equal(t, "release", w.settles().Ref, "a change of the spec wins over a request")
	require.NoError(t, w.apply("main"))
	require.Equal(t, "main", w.settles().Ref, "and a request that has lapsed does not come back")
	assert.Equal(t, "v2", p.GatewaySync().Annotations[v1alpha1.AnnotationRequestedRef], "though nobody has cleared it")
	p.Eventually("somebody has looked while nothing changed", func() bool { return judge.exact() > 0 })
	judge.verdict(seen())
}
