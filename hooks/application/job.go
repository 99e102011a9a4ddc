package application

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The metadata by which Argo CD marks what belongs to an Application.
const (
	TrackingAnnotation = "argocd.argoproj.io/tracking-id"
	InstanceLabel      = "app.kubernetes.io/instance" // unless Argo CD is told another one
)

// Name is the name of an Application.
type Name struct{ Namespace, Name string }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// ParseName reads NAMESPACE/NAME, or NAME alone, which is in the namespace of Argo CD.
func ParseName(s string) (Name, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok {
		namespace, name = DefaultNamespace, s
	}
	if !named(namespace) || !named(name) {
		return Name{}, fmt.Errorf("%.80q names no Application: write NAMESPACE/NAME, or NAME for one in the namespace %s", s, DefaultNamespace)
	}
	return Name{namespace, name}, nil
}

func named(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }

// FromTracking reads the annotation argocd.argoproj.io/tracking-id: "app:group/Kind:namespace/name", where app is
// "namespace_app" for an Application outside of the namespace of Argo CD. Only what stands before the first colon is
// looked at: the rest is left out in part for objects whose name is generated.
func FromTracking(id string) (Name, bool) {
	app, _, ok := strings.Cut(id, ":")
	if !ok {
		return Name{}, false
	}
	return fromApp(app)
}

// FromInstance reads the label by which Argo CD marks its objects; it has the same form.
func FromInstance(value string) (Name, bool) { return fromApp(value) }

// fromApp takes the form apart that Argo CD gives the name of an Application; no name of Kubernetes has an underscore.
func fromApp(app string) (Name, bool) {
	namespace, name, ok := strings.Cut(app, "_")
	if !ok {
		namespace, name = DefaultNamespace, app
	}
	return Name{namespace, name}, named(namespace) && named(name)
}

// Job is what a Job of a sync knows of itself.
type Job struct{ Namespace, Name string }

func (j Job) String() string { return j.Namespace + "/" + j.Name }

// Made is what the name of a Job tells that Argo CD made from metadata.generateName.
type Made struct {
	// Revision is the beginning of the sync's revision; "" where the name does not tell, as for several sources.
	Revision string
	// Phase is the hook's, in lower case: presync, sync, postsync, syncfail.
	Phase string
	// Started is when the sync was started.
	Started time.Time
}

var madeName = regexp.MustCompile(`^(.*)-(presync|sync|postsync|syncfail|postdelete|predelete)-([0-9]{10})$`)

const revisionDigits = 7

// ParseMade reads the name of a Job: the generateName, the first seven characters of the revision, the phase, and the start
// of the sync in seconds. It reports false for names that somebody gave.
func ParseMade(name string) (Made, bool) {
	m := madeName.FindStringSubmatch(name)
	if m == nil {
		return Made{}, false
	}
	seconds, err := strconv.ParseInt(m[3], 10, 64)
	if err != nil {
		return Made{}, false
	}
	made := Made{Phase: m[2], Started: time.Unix(seconds, 0).UTC()}
	// A generateName that does not end in a dash runs into the revision: then nobody can tell where it begins.
	if from := len(m[1]) - revisionDigits; from > 0 && m[1][from-1] == '-' && hex(m[1][from:]) {
		made.Revision = m[1][from:]
	}
	return made, true
}

func hex(s string) bool { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }

var podName = regexp.MustCompile(`^(.+)-[a-z0-9]{5}$`)

// maxPodBase is how much of a Job's name its pods carry, with the dash behind it.
const maxPodBase = 58

// OfPod is the name of the Job that made a pod, from the pod's name; "" where that does not tell.
func OfPod(pod string) string {
	m := podName.FindStringSubmatch(pod)
	if m == nil || len(m[1]) >= maxPodBase { // it may have been cut
		return ""
	}
	return m[1]
}
