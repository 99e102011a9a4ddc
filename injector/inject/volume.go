package inject

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
)

// IgnitionData is the data directory of the official image.
const IgnitionData = "/usr/local/bin/ignition/data"

// Usual names of the data volume and of the gateway's container, most likely first.
var (
	usualVolumes    = []string{"data", "ignition-data"}
	usualContainers = []string{"gateway", "ignition"}
)

// curated are the folders of the data directory that may have their own volume.
var curated = []string{"projects", "config"}

// data describes the data directory of the gateway's container.
type data struct {
	container *corev1.Container
	mount     corev1.VolumeMount
	// below are the mounts of curated folders, with paths relative to the data directory.
	below []corev1.VolumeMount
	// foreign are the paths of mounts that the agent must not write, relative to the data directory: the agent does not have
	// them, or their content comes from other objects.
	foreign []string
}

// findData finds the container that runs the gateway and its data volume.
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
	root := path.Join("/", d.mount.MountPath) // the kubelet treats a relative path in the same way
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

// locate finds the mount of the data volume: that of the annotation, otherwise the one at Ignition's data directory, otherwise
// a volume with a usual name.
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

// mounted returns a container with a matching mount. It prefers a container with a usual name, and then the first. Of several
// mounts in a container, it prefers the one at Ignition's data directory, and then the first.
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

// unshareable returns why a sidecar cannot write a volume for the gateway, or "" if it can.
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

// holdsSecrets reports whether a volume must stay hidden from the agent although it is below the data directory.
func holdsSecrets(v *corev1.Volume) bool { return v == nil || v.Secret != nil || v.Projected != nil }

// isMade reports whether the content of a volume comes from other objects, so that the agent must not write it.
func isMade(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.DownwardAPI != nil || v.Image != nil || v.GitRepo != nil ||
		v.CSI != nil && v.CSI.ReadOnly != nil && *v.CSI.ReadOnly
}
