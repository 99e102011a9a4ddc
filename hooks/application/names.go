package application

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The metadata that Argo CD adds to the objects of an Application.
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
	if !isName(namespace) || !isName(name) {
		return Name{}, fmt.Errorf("%.80q is not the name of an Application: use NAMESPACE/NAME, or NAME in the namespace %s", s, DefaultNamespace)
	}
	return Name{namespace, name}, nil
}

func isName(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }

// NameFromTrackingID parses the annotation argocd.argoproj.io/tracking-id, "app:group/Kind:namespace/name". For an Application outside
// of the namespace of Argo CD, app is "namespace_app". The part after the first colon is ignored: it is incomplete for objects
// with a generated name.
func NameFromTrackingID(id string) (Name, bool) {
	app, _, ok := strings.Cut(id, ":")
	if !ok {
		return Name{}, false
	}
	return FromInstance(app)
}

// FromInstance parses the instance label: app or namespace_app, as in the tracking id. Names in Kubernetes have no underscore.
func FromInstance(app string) (Name, bool) {
	namespace, name, ok := strings.Cut(app, "_")
	if !ok {
		namespace, name = DefaultNamespace, app
	}
	return Name{namespace, name}, isName(namespace) && isName(name)
}

// Job is the namespace and name of a Job.
type Job struct{ Namespace, Name string }

func (j Job) String() string { return j.Namespace + "/" + j.Name }

// HookName is the information in the name of a hook Job that Argo CD generated from metadata.generateName.
type HookName struct {
	// Revision is the beginning of the sync's revision, or "" if the name does not contain it, for example because the
	// Application has several sources.
	Revision string
	// Phase is the phase of the hook in lower case: presync, sync, postsync, syncfail, predelete or postdelete.
	Phase string
	// Started is when the sync started.
	Started time.Time
}

var hookName = regexp.MustCompile(`^(.*)-(presync|sync|postsync|syncfail|postdelete|predelete)-([0-9]{10})$`)

const revisionDigits = 7

// ParseHookName parses the name of a hook Job, such as line-check-3f2a91c-presync-1718000000: generateName, the first seven
// characters of the revision, the phase, and the start of the sync in seconds. It returns false for other names.
func ParseHookName(name string) (HookName, bool) {
	m := hookName.FindStringSubmatch(name)
	if m == nil {
		return HookName{}, false
	}
	seconds, err := strconv.ParseInt(m[3], 10, 64)
	if err != nil {
		return HookName{}, false
	}
	hook := HookName{Phase: m[2], Started: time.Unix(seconds, 0).UTC()}
	// If generateName does not end in a dash, the beginning of the revision is ambiguous, and Revision stays empty.
	if from := len(m[1]) - revisionDigits; from > 0 && m[1][from-1] == '-' && isHex(m[1][from:]) {
		hook.Revision = m[1][from:]
	}
	return hook, true
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

var podName = regexp.MustCompile(`^(.+)-[a-z0-9]{5}$`)

// maxPodBase is the length to which Kubernetes cuts a Job's name and the dash after it, before it appends five random characters.
const maxPodBase = 58

// JobOfPod returns the name of the Job that created a pod. It returns "" if the name has another form or may have been cut. The
// Job must not be an indexed one, whose pods have the index in their names.
func JobOfPod(pod string) string {
	m := podName.FindStringSubmatch(pod)
	if m == nil || len(m[1])+1 >= maxPodBase {
		return ""
	}
	return m[1]
}
