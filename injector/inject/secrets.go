package inject

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/secretrefs"
)

// secretVolume is a Secret or ConfigMap that the GatewaySync references, with the referenced keys.
type secretVolume struct {
	name      string
	folder    string // below secretsDir
	configMap bool
	keys      []string
}

// secrets returns the Secrets and ConfigMaps that an agent of this GatewaySync needs, sorted. Those for proposals are among them only if
// the agent's profile proposes changes: they can write to the repository. The webhook secret is not among them, because only the receiver
// needs it.
func secrets(gs *v1alpha1.GatewaySync, effective effective.Settings) []secretVolume {
	var list []secretVolume
	add := func(field secretrefs.Field, ref v1alpha1.SecretKeyRef) {
		if !mountable(ref) {
			return
		}
		folder := field.Folder(ref.Name)
		i, ok := slices.BinarySearchFunc(list, folder, func(v secretVolume, folder string) int { return strings.Compare(v.folder, folder) })
		if !ok {
			list = slices.Insert(list, i, secretVolume{name: ref.Name, folder: folder, configMap: field.Kind() == "ConfigMap"})
		}
		if j, ok := slices.BinarySearch(list[i].keys, ref.Key); !ok {
			list[i].keys = slices.Insert(list[i].keys, j, ref.Key)
		}
	}
	for field, ref := range secretrefs.ForSync(&gs.Spec) {
		add(field, ref)
	}
	for field, ref := range secretrefs.ForStorage(&gs.Spec) {
		add(field, ref)
	}
	if effective.Bidirectional != nil {
		for field, ref := range secretrefs.ForProposals(&gs.Spec) {
			add(field, ref)
		}
	}
	return list
}

// mountable reports whether the name and key of a Secret are valid. The API server would reject a pod with invalid ones;
// without the file, the agent reports the problem.
func mountable(ref v1alpha1.SecretKeyRef) bool {
	return len(validation.IsDNS1123Subdomain(ref.Name)) == 0 && len(validation.IsConfigMapKey(ref.Key)) == 0
}

func (v secretVolume) volumeName(i int) string { return "stoker-secret-" + strconv.Itoa(i) }

// volume mounts the Secret as a folder of its own. The folder exists, empty, even if the Secret does not. This distinguishes a
// missing credential from one that the pod does not mount.
func (v secretVolume) volume(i int) corev1.Volume {
	items := make([]corev1.KeyToPath, 0, len(v.keys))
	for _, key := range v.keys {
		items = append(items, corev1.KeyToPath{Key: key, Path: key})
	}
	if v.configMap {
		return corev1.Volume{Name: v.volumeName(i), VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: v.name}, Items: items, DefaultMode: new(int32(0o444)), Optional: new(true),
		}}}
	}
	return corev1.Volume{Name: v.volumeName(i), VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: v.name, Items: items, DefaultMode: new(int32(0o444)), Optional: new(true),
	}}}
}

// secretKeys lists the keys that a pod mounts. If a file is missing, the list shows whether the Secret may still be created or the
// pod can never get it.
func secretKeys(list []secretVolume) string {
	var ids []string
	for _, v := range list {
		for _, key := range v.keys {
			ids = append(ids, v.folder+"/"+key)
		}
	}
	return strings.Join(ids, ",")
}
