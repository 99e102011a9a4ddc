package inject

import (
	"fmt"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
)

// IgnitionData is the data directory of the official image.
const IgnitionData = "/usr/local/bin/ignition/data"

// Usual names of the data volume and of the gateway's container, most likely first.
var (
	usualVolumes    = []string{"data", "ignition-data"}
	usualContainers = []string{"gateway", "ignition"}
)

// volumeFolders are the folders of the data directory that may have their own volume.
var volumeFolders = []string{"projects", "config"}

// data describes the data directory of the gateway's container.
type data struct {
	container *corev1.Container
	mount     corev1.VolumeMount
	// folders are the mounts at and below volumeFolders, with paths relative to the data directory.
	folders []corev1.VolumeMount
	// unwritable are the paths of mounts that the agent must not write, relative to the data directory: the agent does not
	// have them, or their content comes from other objects.
	unwritable []string
}

// DataVolume returns an identity of the folder with the data of an injected pod, and whether that folder outlives the pod. If it does not, the
// identity is "". Pods of a namespace have the same identity only if they have the same folder, with one exception. A subPathExpr counts as
// a folder of its own for each pod of a StatefulSet. The successor of any other pod has another name, so there it counts as one folder.
func DataVolume(pod *corev1.Pod) (id string, keeps bool) {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == Container {
			for _, m := range c.VolumeMounts {
				v := findVolume(pod, m.Name)
				if m.MountPath != dataPath || v == nil {
					continue
				}
				folder := m.SubPath
				if m.SubPathExpr != "" {
					folder = ":" + m.SubPathExpr
					if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind == "StatefulSet" {
						folder = pod.Name + folder
					}
				}
				switch {
				case v.PersistentVolumeClaim != nil:
					return fmt.Sprintf("claim %q %q", v.PersistentVolumeClaim.ClaimName, folder), true
				case v.NFS != nil:
					return fmt.Sprintf("nfs %q %q %q", v.NFS.Server, v.NFS.Path, folder), true
				case v.HostPath != nil:
					return fmt.Sprintf("host %q %q %q", pod.Spec.NodeName, v.HostPath.Path, folder), true
				}
				return "", false
			}
		}
	}
	return "", false
}

// findData finds the container that runs the gateway and its data volume.
func findData(pod *corev1.Pod) (data, Decision) {
	want, _ := gatewaypod.Annotation(pod.Annotations, v1alpha1.AnnotationDataVolume)
	if want != "" && findVolume(pod, want) == nil {
		return data{}, skip(v1alpha1.ReasonNoDataVolume, "the pod has no volume %.63q, which annotation %s names: correct the annotation", want, v1alpha1.AnnotationDataVolume)
	}
	d, ok := findDataMount(pod, want)
	switch {
	case !ok && want != "":
		return data{}, skip(v1alpha1.ReasonNoDataVolume, "no container mounts volume %.63q, which annotation %s names: mount it, or correct the annotation", want, v1alpha1.AnnotationDataVolume)
	case !ok:
		return data{}, skip(v1alpha1.ReasonNoDataVolume, "no container mounts a volume at %s, and that of the gateway none named %s: mount one there, or name the volume with annotation %s",
			IgnitionData, strings.Join(usualVolumes, " or "), v1alpha1.AnnotationDataVolume)
	}
	if why := unshareable(findVolume(pod, d.mount.Name), d.mount); why != "" {
		return data{}, skip(v1alpha1.ReasonUnsupportedDataVolume, "volume %.63q %s: the agent must be able to write the gateway's data directory", d.mount.Name, why)
	}
	root := path.Join("/", d.mount.MountPath) // the kubelet treats a relative path in the same way
	for _, m := range d.container.VolumeMounts {
		rest, ok := strings.CutPrefix(path.Join("/", m.MountPath), root+"/")
		if !ok {
			continue
		}
		v := findVolume(pod, m.Name)
		shown := slices.Contains(volumeFolders, strings.SplitN(rest, "/", 2)[0]) && !holdsSecrets(v)
		if !shown || isGenerated(v) {
			d.unwritable = append(d.unwritable, rest)
		}
		if shown {
			m.MountPath = rest
			d.folders = append(d.folders, m)
		}
	}
	return d, Decision{}
}

// findDataMount finds the mount of the data volume: that of the annotation, otherwise the one at Ignition's data directory, otherwise
// a volume with a usual name. If a container of the pod has a usual name, a volume with a usual name must be mounted by that container.
func findDataMount(pod *corev1.Pod, want string) (data, bool) {
	if want != "" {
		return findMount(pod, func(m corev1.VolumeMount) bool { return m.Name == want })
	}
	if d, ok := findMount(pod, func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == IgnitionData }); ok {
		return d, true
	}
	named := func(c corev1.Container) bool { return slices.Contains(usualContainers, c.Name) }
	for _, name := range usualVolumes {
		d, ok := findMount(pod, func(m corev1.VolumeMount) bool { return m.Name == name })
		if ok && (named(*d.container) || !slices.ContainsFunc(pod.Spec.Containers, named)) {
			return d, true
		}
	}
	return data{}, false
}

// findMount returns a container with a matching mount. It prefers a container with a usual name, and then the first. Of several
// mounts in a container, it prefers the one at Ignition's data directory, and then the first.
func findMount(pod *corev1.Pod, is func(corev1.VolumeMount) bool) (data, bool) {
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
		return "is generated by the kubelet from other objects"
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

// isGenerated reports whether the content of a volume comes from other objects, so that the agent must not write it.
func isGenerated(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.DownwardAPI != nil || v.Image != nil || v.GitRepo != nil ||
		v.CSI != nil && v.CSI.ReadOnly != nil && *v.CSI.ReadOnly
}
