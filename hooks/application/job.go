package application

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Metadata by which Argo CD marks the objects of an Application.
const (
	TrackingAnnotation = "argocd.argoproj.io/tracking-id"
	InstanceLabel      = "app.kubernetes.io/instance" // the default; Argo CD can be configured to use another one
)

// Name is the name of an Application.
type Name struct{ Namespace, Name string }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// ParseName parses NAMESPACE/NAME, or NAME in the namespace of Argo CD.
func ParseName(s string) (Name, error) {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok {
		namespace, name = DefaultNamespace, s
	}
	if !named(namespace) || !named(name) {
		return Name{}, fmt.Errorf("%.80q is not the name of an Application: use NAMESPACE/NAME, or NAME in the namespace %s", s, DefaultNamespace)
	}
	return Name{namespace, name}, nil
}

func named(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }

// FromTracking parses the annotation argocd.argoproj.io/tracking-id: "app:group/Kind:namespace/name", where app is
// "namespace_app" for an Application outside of the namespace of Argo CD. It reads only the part before the first colon,
// because the rest is incomplete for objects with a generated name.
func FromTracking(id string) (Name, bool) {
	app, _, ok := strings.Cut(id, ":")
	if !ok {
		return Name{}, false
	}
	return fromApp(app)
}

// FromInstance parses the instance label, which has the form of app in the tracking id.
func FromInstance(value string) (Name, bool) { return fromApp(value) }

// fromApp parses namespace_app or app. Names in Kubernetes have no underscore.
func fromApp(app string) (Name, bool) {
	namespace, name, ok := strings.Cut(app, "_")
	if !ok {
		namespace, name = DefaultNamespace, app
	}
	return Name{namespace, name}, named(namespace) && named(name)
}

// Job is the namespace and name of a Job.
type Job struct{ Namespace, Name string }

func (j Job) String() string { return j.Namespace + "/" + j.Name }

// Made is what the name of a Job shows that Argo CD created from metadata.generateName.
type Made struct {
	// Revision is the beginning of the sync's revision, or "" if the name does not contain it, for example because the
	// Application has several sources.
	Revision string
	// Phase is the phase of the hook in lower case: presync, sync, postsync, syncfail, predelete or postdelete.
	Phase string
	// Started is when the sync started.
	Started time.Time
}

var madeName = regexp.MustCompile(`^(.*)-(presync|sync|postsync|syncfail|postdelete|predelete)-([0-9]{10})$`)

const revisionDigits = 7

// ParseMade parses a generated Job name: generateName, the first seven characters of the revision, the phase, and the start of
// the sync in seconds. It returns false for other names.
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
	// If generateName does not end in a dash, the beginning of the revision is ambiguous.
	if from := len(m[1]) - revisionDigits; from > 0 && m[1][from-1] == '-' && hex(m[1][from:]) {
		made.Revision = m[1][from:]
	}
	return made, true
}

func hex(s string) bool { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }

var podName = regexp.MustCompile(`^(.+)-[a-z0-9]{5}$`)

// maxPodBase is the length to which Kubernetes cuts a Job's name and the dash after it, before it appends five random characters.
const maxPodBase = 58

// OfPod returns the name of the Job that created a pod, or "" if the name is not that of a Job's pod or may have been
// cut.
func OfPod(pod string) string {
	m := podName.FindStringSubmatch(pod)
	if m == nil || len(m[1])+1 >= maxPodBase { // it may be truncated
		return ""
	}
	return m[1]
}
