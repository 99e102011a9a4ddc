package application

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/internal/file"
	"stoker.io/stoker/internal/kube"
)

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
