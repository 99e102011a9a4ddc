package application

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/kube"
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

// Detector finds the Application of the Job that this process runs in.
type Detector struct {
	Job Job
	// PodInfo is the directory of a downward API volume with the files annotations and labels of the pod.
	PodInfo string
	// InstanceLabel is the label that Argo CD sets on its objects.
	InstanceLabel string
	// Client reads the Job if the metadata of the pod does not name the Application. It may be nil.
	Client kube.Core
}

// Application returns the Application whose sync created the Job. It reads the metadata of the pod, which needs no rights. If
// that does not name the Application, it reads the Job, which needs the right to get it.
func (d Detector) Application(ctx context.Context) (Name, error) {
	annotations, err := podInfo(filepath.Join(d.PodInfo, "annotations"))
	if err != nil {
		return Name{}, err
	}
	labels, err := podInfo(filepath.Join(d.PodInfo, "labels"))
	if err != nil {
		return Name{}, err
	}
	if name, ok := d.fromMetadata(annotations, labels); ok {
		return name, nil
	}
	if d.Job.Name == "" || d.Client == nil {
		return Name{}, errors.New("cannot detect the Application: set --application NAMESPACE/NAME, or set the environment variables JOB_NAME and POD_NAMESPACE and grant the right to get the Job")
	}
	job, err := d.Client.BatchV1().Jobs(d.Job.Namespace).Get(ctx, d.Job.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		return Name{}, fmt.Errorf("cannot detect the Application from the Job %s: set --application NAMESPACE/NAME: %w", d.Job, err)
	case err != nil:
		return Name{}, err
	}
	name, ok := d.fromMetadata(job.Annotations, job.Labels)
	if !ok {
		return Name{}, fmt.Errorf("the Job %s has neither the annotation %s nor the label %s of Argo CD: set --application NAMESPACE/NAME", d.Job, TrackingAnnotation, d.InstanceLabel)
	}
	return name, nil
}

// fromMetadata returns the Application that the metadata names. The annotation takes precedence, because other tools set the
// label, too.
func (d Detector) fromMetadata(annotations, labels map[string]string) (Name, bool) {
	if name, ok := NameFromTrackingID(annotations[TrackingAnnotation]); ok {
		return name, true
	}
	if value := labels[d.InstanceLabel]; value != "" {
		return FromInstance(value)
	}
	return Name{}, false
}

// maxPodInfo bounds a file: annotations have at most 256 KiB, which quoting can make four times as long; the rest is reserve.
const maxPodInfo = 2 << 20

// podInfo reads a file of a downward API volume: one name="value" per line. A missing file has no pairs.
func podInfo(name string) (map[string]string, error) {
	raw, err := file.Read(name, maxPodInfo)
	switch {
	case os.IsNotExist(err):
		return map[string]string{}, nil
	case err != nil:
		return nil, fmt.Errorf("read the metadata of the pod: %w", err)
	}
	return parsePodInfo(string(raw)), nil
}

// parsePodInfo returns the pairs of a file, without malformed lines.
func parsePodInfo(text string) map[string]string {
	pairs := map[string]string{}
	for line := range strings.Lines(text) {
		name, quoted, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if value, err := strconv.Unquote(quoted); ok && err == nil {
			pairs[name] = value
		}
	}
	return pairs
}
