package application

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

func TestParseMade(t *testing.T) {
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

func TestOfPod(t *testing.T) {
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
