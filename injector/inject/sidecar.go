package inject

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/internal/failure"
)

// ignitionID is the user and group of the official image.
const ignitionID int64 = 2003

// injectedValue is the value of the annotation v1alpha1.AnnotationInjected.
const injectedValue = "true"

// sidecar collects the properties of one pod's agent.
type sidecar struct {
	pod      *corev1.Pod
	gs       *v1alpha1.GatewaySync
	defaults Defaults

	data      data
	expansion []corev1.EnvVar // the variables of subPathExpr, renamed
	effective effective.Settings
	gateway   string // "" if it is the name of the pod
	secrets   []secretVolume
	warnings  []string
}

// examine reads the properties from the pod and the GatewaySync. The decision has a reason if the pod cannot have an agent.
func (s *sidecar) examine() Decision {
	name, err := gatewaypod.GatewayName(s.pod.Name, s.pod.Labels, s.pod.Annotations)
	if err != nil {
		return skip(failure.Reason(err, v1alpha1.ReasonInvalidAnnotation), "%v", err)
	}
	if name != s.pod.Name {
		s.gateway = name
	}
	if s.effective, err = effective.Of(s.gs, "", s.pod.Annotations); err != nil {
		reason := failure.Reason(err, v1alpha1.ReasonProfilesInvalid)
		if reason == v1alpha1.ReasonProfileNotFound || reason == v1alpha1.ReasonInvalidAnnotation {
			return skip(reason, "%v", err)
		}
		// The agent reports other problems. They are fixed in the GatewaySync and need no new pod.
		s.warn("GatewaySync %s: %v", s.gs.Name, err)
		s.effective.SyncPeriod = v1alpha1.DefaultSyncPeriod
	}
	s.warnUnknown()
	s.warnMesh()
	s.secrets = secrets(s.gs, s.effective)
	if d := s.findVolumes(); d.Reason != "" {
		return d
	}
	if user := s.user(); user != nil && *user == 0 {
		return skip(v1alpha1.ReasonGatewayRunsAsRoot, "container %.63q runs as root: set runAsUser to the user of the image (2003 for the official image)", s.data.container.Name)
	}
	for _, v := range s.volumes() {
		if findVolume(s.pod, v.Name) != nil {
			return skip(v1alpha1.ReasonUnsupportedPod, "the pod has a volume %s but no container %s: rename the volume, because names that start with stoker- are reserved", v.Name, Container)
		}
	}
	return Decision{}
}

func (s *sidecar) findVolumes() Decision {
	var d Decision
	if s.data, d = findData(s.pod); d.Reason != "" {
		return d
	}
	mounts := []*corev1.VolumeMount{&s.data.mount}
	for i := range s.data.folders {
		mounts = append(mounts, &s.data.folders[i])
	}
	for _, m := range mounts {
		renamed, used, ok := renameVariables(m.SubPathExpr, s.data.container.Env)
		if !ok {
			return skip(v1alpha1.ReasonUnsupportedDataVolume, "volume %.63q: the agent cannot expand subPathExpr %.80q: use only variables with a literal value or a field of the pod", m.Name, m.SubPathExpr)
		}
		m.SubPathExpr = renamed
		s.expansion = append(s.expansion, used...)
	}
	return Decision{}
}

// user returns the user of the gateway's container, or nil if only the image sets it.
func (s *sidecar) user() *int64 {
	if c := s.data.container.SecurityContext; c != nil && c.RunAsUser != nil {
		return c.RunAsUser
	}
	if p := s.pod.Spec.SecurityContext; p != nil {
		return p.RunAsUser
	}
	return nil
}

func (s *sidecar) group() *int64 {
	if c := s.data.container.SecurityContext; c != nil && c.RunAsGroup != nil {
		return c.RunAsGroup
	}
	if p := s.pod.Spec.SecurityContext; p != nil {
		return p.RunAsGroup
	}
	return nil
}

// securityContext complies with the Pod Security Standard restricted. The agent runs as the gateway's user, because it writes
// files that the gateway must own. If the pod sets no group, the official user gets its own. Any other user gets the group from
// the image, or 0 if the image does not know it; the same holds for the gateway.
func (s *sidecar) securityContext() *corev1.SecurityContext {
	user, group := s.user(), s.group()
	if user == nil {
		user = new(ignitionID)
	}
	if group == nil && *user == ignitionID {
		group = new(ignitionID)
	}
	return &corev1.SecurityContext{
		RunAsUser:                user,
		RunAsGroup:               group,
		RunAsNonRoot:             new(true),
		ReadOnlyRootFilesystem:   new(true),
		AllowPrivilegeEscalation: new(false),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

// ops returns the additions. An absent or empty list or map is added as a whole.
func (s *sidecar) ops() []Op {
	var ops []Op
	add := func(path string, value any) { ops = append(ops, Op{Op: "add", Path: path, Value: value}) }
	metadata := func(path string, existing map[string]string, pairs [][2]string) {
		if len(existing) == 0 {
			whole := map[string]string{}
			for _, p := range pairs {
				whole[p[0]] = p[1]
			}
			add(path, whole)
			return
		}
		for _, p := range pairs {
			if value, ok := existing[p[0]]; !ok || value != p[1] {
				add(path+"/"+escape(p[0]), p[1])
			}
		}
	}
	metadata("/metadata/labels", s.pod.Labels, [][2]string{{v1alpha1.LabelCRName, s.gs.Name}})
	annotations := [][2]string{{v1alpha1.AnnotationInjected, injectedValue}}
	if GatewaySyncName(s.pod.Annotations) == "" {
		annotations = append(annotations, [2]string{v1alpha1.AnnotationCRName, s.gs.Name})
	}
	metadata("/metadata/annotations", s.pod.Annotations, annotations)

	if volumes := s.volumes(); len(s.pod.Spec.Volumes) == 0 {
		add("/spec/volumes", volumes)
	} else {
		for _, v := range volumes {
			add("/spec/volumes/-", v)
		}
	}
	if c := s.container(); len(s.pod.Spec.InitContainers) == 0 {
		add("/spec/initContainers", []corev1.Container{c})
	} else {
		add("/spec/initContainers/-", c)
	}
	return ops
}

// escape escapes a key for a JSON pointer (RFC 6901).
func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// dataMounts returns what the gateway mounts as its data directory and in it, for dataPath in the agent.
func (s *sidecar) dataMounts() []corev1.VolumeMount {
	m := s.data.mount
	mounts := []corev1.VolumeMount{{Name: m.Name, MountPath: dataPath, SubPath: m.SubPath, SubPathExpr: m.SubPathExpr}}
	for _, b := range s.data.folders {
		mounts = append(mounts, corev1.VolumeMount{
			Name: b.Name, MountPath: path.Join(dataPath, b.MountPath), SubPath: b.SubPath, SubPathExpr: b.SubPathExpr, ReadOnly: b.ReadOnly,
		})
	}
	return mounts
}

// meshes are the init containers by which a service mesh redirects connections, or verifies that its CNI plugin did, and the
// proxies that receive these connections.
var meshes = []struct{ redirect, proxy string }{
	{"istio-init", "istio-proxy"}, {"istio-validation", "istio-proxy"},
	{"linkerd-init", "linkerd-proxy"}, {"linkerd-network-validator", "linkerd-proxy"},
}

// warnMesh warns about a proxy that starts after the agent. Until it runs, the agent has no network, and the kubelet's probes
// of the agent fail. A proxy that is a native sidecar starts before the agent.
func (s *sidecar) warnMesh() {
	has := func(name string) bool {
		return slices.ContainsFunc(s.pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	}
	for _, m := range meshes {
		if has(m.redirect) && !has(m.proxy) {
			s.warn("%s redirects connections to %s, which starts after the agent, so the gateway starts late: make the proxy a native sidecar (docs/how-to/pods.md, Service meshes)", m.redirect, m.proxy)
		}
	}
}

// maxUnknown bounds the annotations in a warning.
const maxUnknown = 3

// warnUnknown warns about annotations with our prefix that have no effect.
func (s *sidecar) warnUnknown() {
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(s.pod.Annotations)) {
		if gatewaypod.IsUnknown(key) {
			unknown = append(unknown, fmt.Sprintf("%.63q", key))
		}
	}
	if n := len(unknown); n > maxUnknown {
		unknown = append(unknown[:maxUnknown], fmt.Sprintf("and %d more", n-maxUnknown))
	}
	if len(unknown) > 0 {
		s.warn("unknown annotations are ignored: %s", strings.Join(unknown, ", "))
	}
}
