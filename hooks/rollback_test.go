package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/exit"
	"stoker.io/stoker/internal/request"
	"stoker.io/stoker/internal/status/statustest"
)

// A failure caused by gateways, operators or git would hit the previous commit too, so no rollback happens.
func TestRollbackIfNeeded(t *testing.T) {
	v := func(reason v1alpha1.Reason, failed int, rows ...v1alpha1.Reason) request.Verdict {
		v := request.Verdict{Phase: request.Failed, Reason: reason, Gateways: request.Count{Failed: failed}}
		for _, r := range rows {
			v.Behind = append(v.Behind, request.Behind{Reason: r})
		}
		return v
	}
	const (
		late       = v1alpha1.ReasonProgressDeadlineExceeded
		broken     = v1alpha1.ReasonConfigSyntaxError
		restart    = v1alpha1.ReasonPodRestartNeeded
		unverified = v1alpha1.ReasonVerificationFailed
		away       = v1alpha1.ReasonGatewayUnreachable
		login      = v1alpha1.ReasonUnsupportedRepository
	)
	for name, c := range map[string]struct {
		v               request.Verdict
		want, undecided bool
	}{
		"invalid JSON file": {v(broken, 1, broken), true, false},
		"missing source":    {v(v1alpha1.ReasonSourceMissing, 1, v1alpha1.ReasonSourceMissing), true, false},
		"invalid JSON file, other gateways in progress": {v(broken, 1, broken, v1alpha1.ReasonProgressing), true, false},
		"missing ref": {v(v1alpha1.ReasonRefNotFound, 0), false, false},
		"missing ref, earlier failures of gateways": {v(v1alpha1.ReasonRefNotFound, 1, broken), false, false},
		"credentials":               {v(v1alpha1.ReasonAuthFailed, 1, v1alpha1.ReasonAuthFailed), false, false},
		"login page instead of git": {v(login, 0), false, false},
		"login page for a gateway":  {v(login, 1, login), false, false},
		"too many refs":             {v(v1alpha1.ReasonLimitExceeded, 0, v1alpha1.ReasonProgressing), false, false},
		"too many files":            {v(v1alpha1.ReasonLimitExceeded, 1, v1alpha1.ReasonLimitExceeded), true, false},
		"pod must be recreated":     {v(restart, 1, restart), false, false},
		"pod must be recreated, another gateway may sync":      {v(restart, 1, restart, unverified), false, true},
		"pod must be recreated, another gateway failed":        {v(restart, 2, restart, broken), true, false},
		"pod must be recreated, another gateway failed before": {v(restart, 1, restart, broken), false, true},
		"deadline exceeded, gateways unavailable":              {v(late, 0, away, v1alpha1.ReasonDesignerSessionActive), false, false},
		"deadline exceeded, gateway rejects the commit":        {v(late, 0, away, unverified), true, false},
		"deadline exceeded, no gateway behind":                 {v(late, 0), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, c.want, blamesCommit(c.v))
			assert.Equal(t, c.undecided, mayChange(c.v))
		})
	}
}

// answersLock answers requests for a SyncTarget with one whose lock is held.
func answersLock(w http.ResponseWriter, r *http.Request) bool {
	if !strings.Contains(r.URL.Path, "/synctargets/") {
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&v1alpha1.SyncTarget{
		TypeMeta: metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindSyncTarget},
		Spec:     v1alpha1.SyncTargetSpec{Lead: v1alpha1.LeadRecord{Holder: "gw-0_1", DurationSeconds: 60, Renewed: &metav1.MicroTime{Time: time.Now()}}},
	})
	return true
}

// fleet simulates an API server with one GatewaySync. Its status changes from before to after once a request arrives.
type fleet struct {
	mu            sync.Mutex
	gs            *v1alpha1.GatewaySync
	before, after func(*v1alpha1.GatewaySyncStatus) // if after is nil, the server stops answering
}

func (f *fleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var patch struct {
		Metadata struct{ Annotations map[string]*string }
	}
	if r.Method == http.MethodPatch && json.NewDecoder(r.Body).Decode(&patch) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	for name, value := range patch.Metadata.Annotations {
		if delete(f.gs.Annotations, name); value != nil {
			f.gs.Annotations[name] = *value
		}
	}
	if answersLock(w, r) {
		return
	}
	f.gs.Status = v1alpha1.GatewaySyncStatus{
		ConfirmedAt: &metav1.Time{Time: time.Now()},
		LastGood:    &v1alpha1.CommitRecord{Ref: "main", Commit: strings.Repeat("a", 40), At: metav1.Now()},
		Target:      &v1alpha1.TargetStatus{Ref: "main", Commit: strings.Repeat("b", 40), RequestedAt: f.gs.Annotations[v1alpha1.AnnotationRequestedAt]},
	}
	switch asked := f.gs.Status.Target.RequestedAt != "earlier"; {
	case !asked:
		f.before(&f.gs.Status)
	case f.after != nil:
		f.after(&f.gs.Status)
	case r.Method == http.MethodGet:
		panic(http.ErrAbortHandler)
	}
	statustest.Complete(f.gs)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(f.gs)
}

// The poll that the SyncFail hook forces restarts the deadline. The rollback must still count the expired one.
func TestRollbackIfNeededAfterDeadline(t *testing.T) {
	t.Parallel()
	row := func(reason v1alpha1.Reason) func(*v1alpha1.GatewaySyncStatus) {
		return func(s *v1alpha1.GatewaySyncStatus) {
			s.DiscoveredGateways = []v1alpha1.DiscoveredGateway{{Name: "gw", SyncStatus: v1alpha1.GatewayPending, Reason: reason, Message: "why"}}
		}
	}
	late := func(reason v1alpha1.Reason) func(*v1alpha1.GatewaySyncStatus) {
		return func(s *v1alpha1.GatewaySyncStatus) {
			row(reason)(s)
			s.LastHandledRequest = "earlier"
			s.Conditions = []metav1.Condition{{
				Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue, Reason: string(v1alpha1.ReasonProgressDeadlineExceeded), LastTransitionTime: metav1.Now(),
			}}
		}
	}
	const unverified, away = v1alpha1.ReasonVerificationFailed, v1alpha1.ReasonGatewayUnreachable
	moved := func(s *v1alpha1.GatewaySyncStatus) { row(unverified)(s); s.Target.Commit = strings.Repeat("c", 40) }
	unseen := func(s *v1alpha1.GatewaySyncStatus) { late(unverified)(s); s.Target.RequestedAt = "earlier" }
	for name, c := range map[string]struct {
		before, after func(*v1alpha1.GatewaySyncStatus)
		said          string
	}{
		"API server unavailable":                   {late(unverified), nil, "nothing was rolled back: the API server does not answer"},
		"gateway rejects the commit":               {late(unverified), row(unverified), "rollback requested (to aaaaaaa until main moves on from bbbbbbb)"},
		"gateway stays unavailable":                {late(away), row(away), "nothing was rolled back: no verdict within"},
		"gateway in progress again":                {late(unverified), row(v1alpha1.ReasonProgressing), "nothing was rolled back: no verdict within"},
		"branch moved on":                          {late(unverified), moved, "nothing was rolled back: no verdict within"},
		"branch not polled again":                  {late(unverified), unseen, "nothing was rolled back: no verdict within"},
		"deadline not exceeded before the request": {row(unverified), row(unverified), "nothing was rolled back: no verdict within"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(&fleet{before: c.before, after: c.after, gs: &v1alpha1.GatewaySync{
				TypeMeta:   metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindGatewaySync},
				ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: "plant", UID: "1", Annotations: map[string]string{v1alpha1.AnnotationRequestedAt: "earlier"}},
				Spec:       v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Ref: "main"}},
			}})
			t.Cleanup(server.Close)
			var said strings.Builder
			code := run(t.Context(), []string{"stoker", "--kubeconfig", kubeconfigOf(t, server.URL), "rollback", "line", "--if-needed", "--by", "argocd", "--id", "job", "--verdict-timeout", "500ms"}, &said, &said)
			want := exit.Done
			if c.after == nil {
				want = exit.Retry
			}
			assert.Equal(t, want, code)
			assert.Contains(t, said.String(), c.said)
		})
	}
}

// An invalid ref is not the fault of a commit. The hook must succeed, or Argo CD shows its error instead of the reason.
func TestRollbackIfNeededOfInvalidRef(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&fleet{before: func(*v1alpha1.GatewaySyncStatus) {}, gs: &v1alpha1.GatewaySync{
		TypeMeta: metav1.TypeMeta{APIVersion: "stoker.io/v1alpha1", Kind: v1alpha1.KindGatewaySync},
		ObjectMeta: metav1.ObjectMeta{Name: "line", Namespace: "plant", UID: "1", Annotations: map[string]string{
			v1alpha1.AnnotationRequestedAt: "earlier", v1alpha1.AnnotationRequestedRef: "v2 .0",
		}},
		Spec:   v1alpha1.GatewaySyncSpec{Git: v1alpha1.GitSpec{Ref: "main"}},
		Status: v1alpha1.GatewaySyncStatus{LastGood: &v1alpha1.CommitRecord{Ref: "main", Commit: strings.Repeat("a", 40)}},
	}})
	t.Cleanup(server.Close)
	for name, c := range map[string]struct {
		args []string
		code int
		said string
	}{
		"as a hook":      {[]string{"--by", "argocd", "--id", "job"}, exit.Done, "nothing was rolled back: "},
		"unknown sender": {[]string{"--by", "unheard-of"}, exit.Usage, "unheard-of"},
		"invalid id":     {[]string{"--id", "a b"}, exit.Usage, "id"},
	} {
		t.Run(name, func(t *testing.T) {
			var said strings.Builder
			assert.Equal(t, c.code, run(t.Context(), append([]string{"stoker", "--kubeconfig", kubeconfigOf(t, server.URL), "rollback", "line", "--if-needed"}, c.args...), &said, &said), &said)
			assert.Contains(t, said.String(), c.said)
		})
	}
}

func TestInvalidDeletionToConfirm(t *testing.T) {
	var said strings.Builder
	assert.Equal(t, exit.Usage, run(t.Context(), []string{"stoker", "--kubeconfig", kubeconfigOf(t, "http://127.0.0.1:1"), "sync", "line", "--confirm-deletion", "xyz"}, &said, &said), &said)
	assert.Contains(t, said.String(), "--confirm-deletion must be")
}
