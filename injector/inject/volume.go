package inject

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// IgnitionData is where the official image has its data directory.
const IgnitionData = "/usr/local/bin/ignition/data"

// usualNames are names of the data volume and of the gateway's container, the likeliest first.
var (
	usualVolumes    = []string{"data", "ignition-data"}
	usualContainers = []string{"gateway", "ignition"}
)

// curated are the folders of the data directory that may have a volume of their own.
var curated = []string{"projects", "config"}

// data is the data directory as the gateway's container has it.
type data struct {
	container *corev1.Container
	mount     corev1.VolumeMount
	// below are the mounts of curated folders, with paths relative to the data directory.
	below []corev1.VolumeMount
	// foreign are the paths of the mounts that are not the agent's to write, relative to the data directory: it has none
	// there, or only reads what is made of other objects.
	foreign []string
}

// findData finds the volume of the data directory and the container that runs the gateway on it.
func findData(pod *corev1.Pod) (data, Decision) {
	want, _ := v1alpha1.PodAnnotation(pod.Annotations, v1alpha1.AnnotationDataVolume)
	if want != "" && findVolume(pod, want) == nil {
		return data{}, skip(v1alpha1.ReasonNoDataVolume, "the pod has no volume %.63q, which the annotation %s names", want, v1alpha1.AnnotationDataVolume)
	}
	d, ok := locate(pod, want)
	switch {
	case !ok && want != "":
		return data{}, skip(v1alpha1.ReasonNoDataVolume, "no container of the pod mounts the volume %.63q, which the annotation %s names", want, v1alpha1.AnnotationDataVolume)
	case !ok:
		return data{}, skip(v1alpha1.ReasonNoDataVolume, "no container of the pod mounts a volume at %s, and none is called %s: mount one there, or name it with the annotation %s",
			IgnitionData, strings.Join(usualVolumes, " or "), v1alpha1.AnnotationDataVolume)
	}
	if why := unshareable(findVolume(pod, d.mount.Name), d.mount); why != "" {
		return data{}, skip(v1alpha1.ReasonUnsupportedDataVolume, "volume %.63q %s: the agent has to write where the gateway reads", d.mount.Name, why)
	}
	root := path.Join("/", d.mount.MountPath) // as the kubelet reads a relative one
	for _, m := range d.container.VolumeMounts {
		rest, ok := strings.CutPrefix(path.Join("/", m.MountPath), root+"/")
		if !ok {
			continue
		}
		v := findVolume(pod, m.Name)
		shown := slices.Contains(curated, strings.SplitN(rest, "/", 2)[0]) && !holdsSecrets(v)
		if !shown || isMade(v) {
			d.foreign = append(d.foreign, rest)
		}
		if shown {
			m.MountPath = rest
			d.below = append(d.below, m)
		}
	}
	return d, Decision{}
}

// locate looks for the mount of the data volume: that of the annotation, else what is mounted where Ignition has its data,
// else a volume by its usual name.
func locate(pod *corev1.Pod, want string) (data, bool) {
	if want != "" {
		return mounted(pod, func(m corev1.VolumeMount) bool { return m.Name == want })
	}
	if d, ok := mounted(pod, func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == IgnitionData }); ok {
		return d, true
	}
	for _, name := range usualVolumes {
		if d, ok := mounted(pod, func(m corev1.VolumeMount) bool { return m.Name == name }); ok {
			return d, true
		}
	}
	return data{}, false
}

// mounted returns the container that has such a mount. Of several it is the one with a gateway's usual name, else the
// first; of several mounts of one container the one at Ignition's own path, else the first.
func mounted(pod *corev1.Pod, is func(corev1.VolumeMount) bool) (data, bool) {
	var found []data
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		first := -1
		for j, m := range c.VolumeMounts {
			if is(m) && (first < 0 || path.Clean(m.MountPath) == IgnitionData) {
				first = j
			}
		}
		if first >= 0 {
			found = append(found, data{container: c, mount: c.VolumeMounts[first]})
		}
	}
	for _, name := range usualContainers {
		for _, d := range found {
			if d.container.Name == name {
				return d, true
			}
		}
	}
	if len(found) == 0 {
		return data{}, false
	}
	return found[0], true
}

func findVolume(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// unshareable says why a sidecar cannot write a volume for the gateway; empty where it can.
func unshareable(v *corev1.Volume, m corev1.VolumeMount) string {
	if m.ReadOnly {
		return "is mounted read-only"
	}
	if v == nil {
		return "is not among the pod's volumes"
	}
	switch s := v.VolumeSource; {
	case s.ConfigMap != nil:
		return "is a ConfigMap"
	case s.Secret != nil:
		return "is a Secret"
	case s.Projected != nil, s.DownwardAPI != nil:
		return "is made by the kubelet from other objects"
	case s.Image != nil:
		return "is an image"
	case s.GitRepo != nil:
		return "is a gitRepo"
	case s.PersistentVolumeClaim != nil && s.PersistentVolumeClaim.ReadOnly,
		s.CSI != nil && s.CSI.ReadOnly != nil && *s.CSI.ReadOnly,
		s.NFS != nil && s.NFS.ReadOnly, s.ISCSI != nil && s.ISCSI.ReadOnly, s.FC != nil && s.FC.ReadOnly,
		s.AzureFile != nil && s.AzureFile.ReadOnly, s.CephFS != nil && s.CephFS.ReadOnly, s.RBD != nil && s.RBD.ReadOnly:
		return "is read-only"
	}
	return ""
}

// holdsSecrets tells the volumes that the agent is not shown, although the gateway mounts them below its data directory.
func holdsSecrets(v *corev1.Volume) bool { return v == nil || v.Secret != nil || v.Projected != nil }

// isMade tells the volumes whose content is made of other objects, so that it is written there and not by the agent.
func isMade(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.DownwardAPI != nil || v.Image != nil || v.GitRepo != nil ||
		v.CSI != nil && v.CSI.ReadOnly != nil && *v.CSI.ReadOnly
}
