package application

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1/syntax"
)

const (
	older = "d7faf59aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	newer = "d71ae04bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	repo  = "https://git.example.com/plants/line.git"
	made  = "stoker-pre-d71ae04-presync-1795150392" // the Job that the sync of newer creates
)

// stale and fresh are two reads of the Application during the sync of newer, recorded with Argo CD 2.14 and 3.2. stale still has the result of
// the sync before, of older.
const (
	stale = `{metadata: {name: line, namespace: argocd}, spec: {source: {repoURL: "git@git.example.com:plants/line"}}, status: {operationState: {
phase: Running, startedAt: "2026-11-20T04:53:12Z", syncResult: {revision: d7faf59aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, resources: [
{group: batch, version: v1, kind: Job, namespace: plant, name: stoker-pre-d7faf59-presync-1795150300, hookPhase: Succeeded}]}}}}`
	fresh = `{metadata: {name: line, namespace: argocd}, spec: {source: {repoURL: "git@git.example.com:plants/line"}}, status: {operationState: {
phase: Running, startedAt: "2026-11-20T04:53:12Z", syncResult: {revision: d71ae04bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, resources: [
{group: batch, version: v1, kind: Job, namespace: plant, name: stoker-pre-d71ae04-presync-1795150392, hookPhase: Running}]}}}}`
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(text), &u.Object))
	u.SetAPIVersion("argoproj.io/v1alpha1")
	u.SetKind("Application")
	return u
}

func application(t *testing.T, text string) *Application {
	t.Helper()
	a, err := decode(object(t, text))
	require.NoError(t, err)
	return a
}

func query(job string) SyncQuery {
	return SyncQuery{Application: Name{"argocd", "line"}, Job: Job{"plant", job}, Repo: repo, Timeout: time.Minute}
}

// Only a read that shows the sync of the Job, with a commit of the repository, gives a result.
func TestEvaluate(t *testing.T) {
	with := func(text string, changes ...string) string { return strings.NewReplacer(changes...).Replace(text) }
	several := with(fresh, "revision: "+newer, "revisions: ["+older+", "+newer+"], sources: [{repoURL: 'https://charts.example.com', chart: x}, {repoURL: '"+repo+"'}]",
		made, "stoker--presync-1795150392")
	for name, c := range map[string]struct {
		text, job, source string
		commit            string
		err               error
		message           string
	}{
		"running hook":                              {text: fresh, job: made, commit: newer},
		"running hook with a fixed name":            {text: with(fresh, made, "stoker-set-ref"), job: "stoker-set-ref", commit: newer},
		"revision in the name of the Job":           {text: with(fresh, "hookPhase: Running", "hookPhase: Succeeded"), job: made, commit: newer},
		"result of the previous sync":               {text: stale, job: made, err: ErrStale, message: "d7faf59"},
		"Job of the same name in the previous sync": {text: with(stale, "stoker-pre-d7faf59-presync-1795150300", "stoker-set-ref"), job: "stoker-set-ref", err: ErrStale},
		"Job of another namespace":                  {text: with(fresh, made, "stoker-set-ref", "namespace: plant", "namespace: other"), job: "stoker-set-ref", err: ErrStale},
		"Pod of the same name":                      {text: with(fresh, made, "stoker-set-ref", "kind: Job", "kind: Pod"), job: "stoker-set-ref", err: ErrStale},
		"no result yet":                             {text: with(fresh, "syncResult:", "other:"), job: made, err: ErrStale, message: "no result"},
		"never synced":                              {text: `{spec: {source: {repoURL: x}}}`, job: made, err: ErrStale, message: "not synced"},
		"another sync in progress":                  {text: with(fresh, "04:53:12Z", "04:53:13Z"), job: made, err: ErrOvertaken, message: "started another one at 2026-11-20T04:53:13Z"},
		"failed sync":                               {text: with(fresh, "phase: Running, startedAt", "phase: Failed, startedAt"), job: "stoker-set-ref", err: ErrOvertaken, message: "ended as Failed"},
		"stopped sync":                              {text: with(fresh, "phase: Running, startedAt", "phase: Terminating, startedAt"), job: made, err: ErrOvertaken},
		"another repository":                        {text: with(fresh, "plants/line", "plants/deployment"), job: made, err: ErrOtherRepository, message: "plants/deployment"},
		"a chart":                                   {text: with(fresh, newer, "1.2.3", made, "stoker"), job: "stoker", err: ErrOtherRepository, message: "is not a git commit"},
		"several sources, one matches":              {text: several, job: "stoker--presync-1795150392", commit: newer},
		"several sources by position":               {text: several, job: "stoker--presync-1795150392", source: "2", commit: newer},
		"several sources by address":                {text: several, job: "stoker--presync-1795150392", source: "ssh://git@git.example.com/plants/line", commit: newer},
		"several sources, chart selected":           {text: several, job: "stoker--presync-1795150392", source: "1", err: ErrOtherRepository},
		"several sources, none selected":            {text: several, job: "stoker--presync-1795150392", source: "3", err: ErrOtherRepository, message: "--source"},
		"several sources, none matches":             {text: with(several, repo, "https://git.example.com/other"), job: "stoker--presync-1795150392", err: ErrOtherRepository},
		"one repository twice at one commit":        {text: with(several, "https://charts.example.com', chart: x", repo+"'", older, newer), job: "stoker--presync-1795150392", commit: newer},
		"one repository twice at two commits":       {text: with(several, "https://charts.example.com', chart: x", repo+"'"), job: "stoker--presync-1795150392", err: ErrOtherRepository, message: "--source"},
		"more sources than revisions":               {text: with(several, "["+older+", ", "["), job: "stoker--presync-1795150392", err: ErrStale},
		"sources in the spec only":                  {text: with(several, " sources:", " other:", "source: {", "sources: [{repoURL: a}, {", "line\"}}", "line\"}]}"), job: "stoker--presync-1795150392", commit: newer},
		"no source":                                 {text: with(fresh, "source:", "other:"), job: made, err: ErrOtherRepository, message: "no repository"},
		"password in the address is hidden":         {text: with(fresh, "git@git.example.com:plants/line", "https://user:S3CR3T@git.example.com/other"), job: made, err: ErrOtherRepository, message: "https://git.example.com/other"},
		"retry not started":                         {text: with(stale, "1795150300", "1795150392"), job: made, err: ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			q := query(c.job)
			q.Source = c.source
			got, err := q.evaluate(application(t, c.text))
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				require.ErrorContains(t, err, c.message)
				require.NotContains(t, err.Error(), "S3CR3T")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, c.commit, got.Commit)
		})
	}
}

// answers returns an API server whose answers to reads are the Applications and errors of texts, one after the other, then the last one
// forever. It counts the reads.
func answers(t *testing.T, reads *int, texts ...any) *fake.FakeDynamicClient {
	t.Helper()
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{Resource: "ApplicationList"})
	client.PrependReactor("get", "applications", func(clienttesting.Action) (bool, runtime.Object, error) {
		next := texts[min(*reads, len(texts)-1)]
		*reads++
		if err, ok := next.(error); ok {
			return true, nil, err
		}
		return true, object(t, next.(string)), nil
	})
	return client
}

func TestWaitForSyncSkipsPreviousResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, began := 0, time.Now()
		busy := apierrors.NewTooManyRequestsError("busy")
		got, err := WaitForSync(t.Context(), answers(t, &reads, stale, stale, busy, errors.New("connection refused"), stale, fresh), query(made))
		require.NoError(t, err)
		assert.Equal(t, newer, got.Commit)
		assert.Equal(t, Name{"argocd", "line"}, got.Application)
		assert.Equal(t, 6, reads)
		assert.Equal(t, 5*pollInterval, time.Since(began))
	})
}

func TestWaitForSyncTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, began := 0, time.Now()
		_, err := WaitForSync(t.Context(), answers(t, &reads, stale), query(made))
		require.ErrorIs(t, err, ErrStale)
		require.ErrorContains(t, err, "d7faf59")
		require.ErrorContains(t, err, "plant/"+made)
		assert.Equal(t, time.Minute, time.Since(began))

		reads = 0
		_, err = WaitForSync(t.Context(), answers(t, &reads, stale, errors.New("rate: Wait(n=1) would exceed context deadline")), query(made))
		require.ErrorIs(t, err, ErrStale)
		require.ErrorContains(t, err, "d7faf59", "a failed read must not hide the message of an earlier one")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = WaitForSync(ctx, answers(t, &reads, stale), query(made))
		assert.ErrorIs(t, err, context.DeadlineExceeded, "the context of the caller must end the wait")
	})
}

func TestWaitForSyncReadsOnce(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(object(t, fresh).Object))
	}))
	t.Cleanup(server.Close)
	client, err := dynamic.NewForConfig(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	q := query(made)
	q.Timeout = time.Nanosecond
	got, err := WaitForSync(t.Context(), client, q)
	require.NoError(t, err)
	assert.Equal(t, newer, got.Commit)
}

func TestWaitForSyncPermanentErrors(t *testing.T) {
	group := schema.GroupResource{Group: Resource.Group, Resource: Resource.Resource}
	for message, answer := range map[string]any{
		"stoker-hooks-applications": apierrors.NewForbidden(group, "line", errors.New("no")),
		"there is no Application":   apierrors.NewNotFound(group, "line"),
		"does not have the form":    `{spec: {source: [1]}}`,
		"is over":                   strings.ReplaceAll(fresh, "phase: Running, startedAt", "phase: Error, startedAt"),
	} {
		t.Run(message, func(t *testing.T) {
			reads := 0
			_, err := WaitForSync(t.Context(), answers(t, &reads, answer), query(made))
			require.ErrorContains(t, err, message)
			assert.Equal(t, 1, reads)
		})
	}
}

func FuzzApplication(f *testing.F) {
	f.Add(stale, made)
	f.Add(fresh, "stoker")
	f.Add(`{status: {operationState: {syncResult: {revisions: [a], sources: []}}}}`, "")
	f.Fuzz(func(t *testing.T, text, job string) {
		u := &unstructured.Unstructured{}
		if yaml.Unmarshal([]byte(text), &u.Object) != nil {
			return
		}
		a, err := decode(u)
		if err != nil {
			return
		}
		if s, err := query(job).evaluate(a); err == nil {
			assert.True(t, syntax.IsCommit(s.Commit))
		}
	})
}
