package inject

import (
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"stoker.io/stoker/api/v1alpha1"
)

// secretVolume is one Secret that the GatewaySync names, with the keys that it names of it.
type secretVolume struct {
	name string
	keys []string
}

// secrets lists the Secrets that an agent of this GatewaySync needs, sorted. The secret of webhooks is not among them: it
// is the receiver's.
func secrets(gs *v1alpha1.GatewaySync) []secretVolume {
	var list []secretVolume
	for _, ref := range references(gs) {
		if ref == nil || !mountable(ref) {
			continue
		}
		i, ok := slices.BinarySearchFunc(list, ref.Name, func(v secretVolume, name string) int { return strings.Compare(v.name, name) })
		if !ok {
			list = slices.Insert(list, i, secretVolume{name: ref.Name})
		}
		if j, ok := slices.BinarySearch(list[i].keys, ref.Key); !ok {
			list[i].keys = slices.Insert(list[i].keys, j, ref.Key)
		}
	}
	return list
}

// mountable guards against names that no API server has checked: a pod with them would be refused as a whole. Without the
// file the agent says what is wrong.
func mountable(ref *v1alpha1.SecretKeyRef) bool {
	return len(validation.IsDNS1123Subdomain(ref.Name)) == 0 && len(validation.IsConfigMapKey(ref.Key)) == 0
}

func references(gs *v1alpha1.GatewaySync) []*v1alpha1.SecretKeyRef {
	key, hosts, token := gitCredentials(gs)
	refs := []*v1alpha1.SecretKeyRef{gs.Spec.Gateway.APIKey(), key, hosts, token, gs.Spec.Git.CASecretRef}
	if auth := gs.Spec.Git.Auth; auth != nil && auth.GitHubApp != nil {
		refs = append(refs, &auth.GitHubApp.PrivateKeySecretRef)
	}
	if t := gs.Spec.Gateway.TLSConfig; t != nil {
		refs = append(refs, t.CASecretRef)
	}
	return refs
}

func gitCredentials(gs *v1alpha1.GatewaySync) (key, hosts, token *v1alpha1.SecretKeyRef) {
	auth := gs.Spec.Git.Auth
	if auth == nil {
		return nil, nil, nil
	}
	if auth.SSHKey != nil {
		key = &auth.SSHKey.SecretRef
		if auth.SSHKey.KnownHosts != nil {
			hosts = &auth.SSHKey.KnownHosts.SecretRef
		}
	}
	if auth.Token != nil {
		token = &auth.Token.SecretRef
	}
	return key, hosts, token
}

func (v secretVolume) volumeName(i int) string { return "stoker-secret-" + strconv.Itoa(i) }

// volume mounts the Secret as a folder of its own: it is there, empty, even where the Secret is not, and so tells a
// credential that is missing from one that the pod was never given.
func (v secretVolume) volume(i int) corev1.Volume {
	items := make([]corev1.KeyToPath, 0, len(v.keys))
	for _, key := range v.keys {
		items = append(items, corev1.KeyToPath{Key: key, Path: key})
	}
	return corev1.Volume{Name: v.volumeName(i), VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: v.name, Items: items, DefaultMode: new(int32(0o444)), Optional: new(true),
	}}}
}

// keysOf lists the keys that a pod mounts. A file that is not there may be one that nobody has created yet: only the list
// tells that from one that no Secret can bring into this pod any more.
func keysOf(list []secretVolume) string {
	var ids []string
	for _, v := range list {
		for _, key := range v.keys {
			ids = append(ids, v.name+"/"+key)
		}
	}
	return strings.Join(ids, ",")
}

func secretFile(ref *v1alpha1.SecretKeyRef) string { return path.Join(secretsDir, ref.Name, ref.Key) }
