package application

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/test/clientset"
)

func TestParseName(t *testing.T) {
	for text, want := range map[string]Name{
		"site": {"argocd", "site"}, "argocd/site": {"argocd", "site"}, "plant/site-1.a": {"plant", "site-1.a"},
		"": {}, "/": {}, "a/": {}, "/a": {}, "a/b/c": {}, "A": {}, "a b": {}, "a_b": {}, "-": {}, strings.Repeat("a", 300): {},
	} {
		t.Run(text, func(t *testing.T) {
			got, err := ParseName(text)
			if want == (Name{}) {
				assert.ErrorContains(t, err, "NAMESPACE/NAME")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
}

func TestNameFromTrackingID(t *testing.T) {
	for id, want := range map[string]Name{
		"site:batch/Job:plant/stoker-pre": {"argocd", "site"},
		"site:batch/Job:plant/":           {"argocd", "site"}, // an object with a generated name
		"apps_site:batch/Job:plant/x":     {"apps", "site"},
		"site:":                           {"argocd", "site"},
		"site":                            {}, // not a tracking annotation of Argo CD
		"":                                {}, ":batch/Job:plant/x": {}, "_site:x": {}, "apps_:x": {}, "a_b_c:x": {}, "Site:x": {}, "a/b:x": {},
	} {
		t.Run(id, func(t *testing.T) {
			got, ok := NameFromTrackingID(id)
			assert.Equal(t, want != Name{}, ok)
			if ok {
				assert.Equal(t, want, got)
			}
		})
	}
	got, ok := FromInstance("apps_site")
	assert.True(t, ok)
	assert.Equal(t, Name{"apps", "site"}, got)
}

func TestParseHookName(t *testing.T) {
	start := time.Unix(1795150392, 0).UTC()
	for name, want := range map[string]HookName{
		"stoker-pre-d71ae04-presync-1795150392":            {"d71ae04", "presync", start},
		"stoker-d71ae04-sync-1795150392":                   {"d71ae04", "sync", start},
		"a-b-c-0000000-postsync-1795150392":                {"0000000", "postsync", start},
		"x-d71ae04-syncfail-1795150392":                    {"d71ae04", "syncfail", start},
		"stoker-pre--presync-1795150392":                   {"", "presync", start}, // several sources
		"stoker-pre-1.2.3-presync-1795150392":              {"", "presync", start}, // a chart
		"stoker-pred71ae04-presync-1795150392":             {"", "presync", start}, // the start of the revision is unknown
		"d71ae04-presync-1795150392":                       {"", "presync", start},
		"stoker-sync-d71ae04-sync-1795150392":              {"d71ae04", "sync", start},
		"stoker-d71ae04-presync-1-d71ae05-sync-1795150392": {"d71ae05", "sync", start},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := ParseHookName(name)
			assert.True(t, ok)
			assert.Equal(t, want, got)
		})
	}
	for _, name := range []string{"", "stoker-wait", "stoker-d71ae04-presync-179515039", "stoker-d71ae04-presync-17951503921", "stoker-d71ae04-skip-1795150392", "presync-1795150392"} {
		t.Run(name, func(t *testing.T) {
			_, ok := ParseHookName(name)
			assert.False(t, ok)
		})
	}
}

func TestJobOfPod(t *testing.T) {
	assert.Equal(t, "stoker-pre-d71ae04-presync-1795150392", JobOfPod("stoker-pre-d71ae04-presync-1795150392-x7k2p"))
	assert.Equal(t, "job", JobOfPod("job-abcde"))
	assert.Empty(t, JobOfPod(strings.Repeat("a", 57)+"-abcde"), "Kubernetes may have truncated the name at a dash")
	assert.Equal(t, strings.Repeat("a", 56), JobOfPod(strings.Repeat("a", 56)+"-abcde"))
	for _, pod := range []string{"", "job", "job-abc", "job-ABCDE", "-abcde", strings.Repeat("a", 58) + "-abcde"} {
		t.Run(pod, func(t *testing.T) { assert.Empty(t, JobOfPod(pod)) })
	}
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"stoker-pre-d71ae04-presync-1795150392", "site:batch/Job:plant/", "apps_site:", "-presync-0000000000", "plant/site", `argocd.argoproj.io/tracking-id="a:b"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if made, ok := ParseHookName(s); ok {
			assert.True(t, made.Revision == "" || len(made.Revision) == revisionDigits && strings.Contains(s, "-"+made.Revision+"-"+made.Phase+"-"))
		}
		for _, read := range []func(string) (Name, bool){NameFromTrackingID, FromInstance} {
			if name, ok := read(s); ok {
				again, err := ParseName(name.String())
				assert.NoError(t, err)
				assert.Equal(t, name, again)
				assert.True(t, strings.HasPrefix(s, name.Name) || strings.HasPrefix(s, name.Namespace+"_"+name.Name))
			}
		}
		assert.True(t, JobOfPod(s) == "" || strings.HasPrefix(s, JobOfPod(s)+"-"))
		_ = parsePodInfo(s)
	})
}

func TestDetectApplication(t *testing.T) {
	job := Job{Namespace: "plant", Name: "stoker"}
	marked := func(annotations, labels map[string]string) *clientset.Fake {
		return clientset.New(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: job.Namespace, Name: job.Name, Annotations: annotations, Labels: labels}})
	}
	tracked := map[string]string{TrackingAnnotation: "apps_site:batch/Job:plant/stoker"}
	info := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(info, name), []byte(text), 0o600))
	}
	find := func(s Detector) (Name, error) {
		s.Job, s.InstanceLabel = job, InstanceLabel
		return s.Application(t.Context())
	}

	got, err := find(Detector{PodInfo: info, Client: marked(tracked, map[string]string{InstanceLabel: "other"})})
	require.NoError(t, err)
	assert.Equal(t, Name{"apps", "site"}, got, "the annotation takes precedence over the label")
	got, err = find(Detector{PodInfo: info, Client: marked(nil, map[string]string{InstanceLabel: "line"})})
	require.NoError(t, err)
	assert.Equal(t, Name{"argocd", "line"}, got)
	_, err = find(Detector{PodInfo: info, Client: marked(nil, nil)})
	require.ErrorContains(t, err, "of Argo CD")
	_, err = find(Detector{PodInfo: info, Client: clientset.New()})
	require.ErrorContains(t, err, "cannot detect the Application from the Job plant/stoker: set --application")
	_, err = find(Detector{PodInfo: info})
	require.ErrorContains(t, err, "set --application")

	write("labels", "batch.kubernetes.io/job-name=\"stoker\"\nno pair\n"+InstanceLabel+"=\"line-2\"")
	got, err = find(Detector{PodInfo: info})
	require.NoError(t, err)
	assert.Equal(t, Name{"argocd", "line-2"}, got)
	write("annotations", "x=\"\\\"\\n\"\n"+TrackingAnnotation+"=\"site:batch/Job:plant/\"\n")
	got, err = find(Detector{PodInfo: info})
	require.NoError(t, err)
	assert.Equal(t, Name{"argocd", "site"}, got)
	own := Detector{Job: job, PodInfo: t.TempDir(), InstanceLabel: "example.com/app", Client: marked(nil, map[string]string{"example.com/app": "own-key"})}
	got, err = own.Application(t.Context())
	require.NoError(t, err)
	assert.Equal(t, Name{"argocd", "own-key"}, got)
}

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

// query returns a query for the sync that created a Job, as the hook of that Job makes it.
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
