package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
	"stoker.io/stoker/api/v1alpha1/validation"
)

// Paths in the agent's container. The agent gets them in its environment, except tokenDir and tmpDir, which are the usual ones.
const (
	dataPath   = "/ignition-data"
	repoPath   = "/repo"
	secretsDir = "/etc/stoker/secrets"
	keyDir     = "/var/run/stoker"
	podinfoDir = "/etc/podinfo"
	tokenDir   = "/var/run/secrets/kubernetes.io/serviceaccount"
	tmpDir     = "/tmp"
)

const (
	volumeRepo    = "stoker-repo"
	volumeTmp     = "stoker-tmp"
	volumePodinfo = "stoker-podinfo"
	volumeToken   = "stoker-token"
	volumeKey     = "stoker-key"

	// keySize bounds the volume with the agent's API key, in bytes.
	keySize = 64 << 10

	// PortHealth is the name of the agent's port for probes.
	PortHealth = gatewaypod.AgentHealthPort
	// PortMetrics is the name of the agent's port for Prometheus.
	PortMetrics = "stoker-metrics"

	// tokenSeconds is the lifetime of a ServiceAccount token. It is the value that the API server's own admission uses, which
	// marks the token as one whose renewal is not urgent.
	tokenSeconds int64 = 3607
	// startupSlack is the time in addition to spec.progressDeadline after which the kubelet restarts an agent that has not let
	// the gateway start.
	startupSlack = 10 * time.Minute
)

func (s *sidecar) volumes() []corev1.Volume {
	read := new(int32(0o444))
	field := func(file, path string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: file, FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	list := []corev1.Volume{
		{Name: volumeRepo, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: volumeTmp, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: volumePodinfo, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			DefaultMode: read,
			Items:       []corev1.DownwardAPIVolumeFile{field("labels", "metadata.labels"), field("annotations", "metadata.annotations")},
		}}},
		{Name: volumeToken, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: new(int32(0o644)),
			Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(tokenSeconds)}},
				{ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
					Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
				}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{field("namespace", "metadata.namespace")}}},
			},
		}}},
	}
	if s.gs.Spec.Gateway.ManagedKey() { // in memory, so that the key ends with the pod
		list = append(list, corev1.Volume{Name: volumeKey, VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: resource.NewQuantity(keySize, resource.BinarySI)},
		}})
	}
	for i, v := range s.secrets {
		list = append(list, v.volume(i))
	}
	return list
}

func (s *sidecar) mounts() []corev1.VolumeMount {
	mounts := s.dataMounts()
	mounts = append(mounts,
		corev1.VolumeMount{Name: volumeRepo, MountPath: repoPath},
		corev1.VolumeMount{Name: volumeTmp, MountPath: tmpDir},
		corev1.VolumeMount{Name: volumePodinfo, MountPath: podinfoDir, ReadOnly: true},
		corev1.VolumeMount{Name: volumeToken, MountPath: tokenDir, ReadOnly: true},
	)
	if s.gs.Spec.Gateway.ManagedKey() {
		mounts = append(mounts, corev1.VolumeMount{Name: volumeKey, MountPath: keyDir})
	}
	for i, v := range s.secrets {
		mounts = append(mounts, corev1.VolumeMount{Name: v.volumeName(i), MountPath: secretsDir + "/" + v.folder, ReadOnly: true})
	}
	return mounts
}

// identity returns the environment except for the variables of subPathExpr.
func (s *sidecar) identity() []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	value := func(name, v string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: escapeEnv(v)} }
	gateway := field("GATEWAY_NAME", "metadata.name")
	if s.gateway != "" {
		gateway = value("GATEWAY_NAME", s.gateway)
	}
	env := []corev1.EnvVar{
		field("POD_NAME", "metadata.name"),
		field("POD_NAMESPACE", "metadata.namespace"),
		field("POD_UID", "metadata.uid"),
		value("CR_NAME", s.gs.Name),
		gateway,
		value("PROFILE", s.effective.Profile),
		value("REPO_PATH", repoPath),
		value("DATA_PATH", dataPath),
		value("GATEWAY_PORT", strconv.Itoa(int(s.gs.Spec.Gateway.EffectivePort()))),
		value("GATEWAY_TLS", strconv.FormatBool(s.gs.Spec.Gateway.TLS)),
		value("SYNC_PERIOD", strconv.Itoa(int(s.effective.SyncPeriod.Seconds()))),
		value("SECRETS_DIR", secretsDir),
		value("SECRETS", secretKeys(s.secrets)),
		value("PODINFO_DIR", podinfoDir),
	}
	if s.gs.Spec.Gateway.ManagedKey() {
		env = append(env, value("KEY_DIR", keyDir))
	}
	if len(s.data.unwritable) > 0 {
		env = append(env, value("GATEWAY_MOUNTS", encodePaths(s.data.unwritable)))
	}
	for _, v := range s.defaults.Env {
		env = append(env, value(v.Name, v.Value))
	}
	return env
}

// encodePaths encodes paths as JSON, because they may contain any character.
func encodePaths(paths []string) string {
	text, err := json.Marshal(paths)
	if err != nil {
		panic(err) // impossible for strings
	}
	return string(text)
}

func (s *sidecar) environment() []corev1.EnvVar {
	env := s.identity()
	for _, v := range s.expansion {
		if !slices.ContainsFunc(env, func(o corev1.EnvVar) bool { return o.Name == v.Name }) {
			env = append(env, v)
		}
	}
	return env
}

// container returns the native sidecar. It has no readiness probe, because a failing agent must not remove a healthy gateway
// from its Services.
func (s *sidecar) container() corev1.Container {
	health, metrics := s.ports()
	probe := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(health)}}
	}
	return corev1.Container{
		Name:            Container,
		Image:           s.image(),
		ImagePullPolicy: s.pullPolicy(),
		Args:            append([]string{"--health-addr=:" + strconv.Itoa(int(health)), "--metrics-addr=:" + strconv.Itoa(int(metrics))}, s.defaults.Args...),
		RestartPolicy:   new(corev1.ContainerRestartPolicyAlways),
		Env:             s.environment(),
		Ports: []corev1.ContainerPort{
			{Name: PortHealth, ContainerPort: health, Protocol: corev1.ProtocolTCP},
			{Name: PortMetrics, ContainerPort: metrics, Protocol: corev1.ProtocolTCP},
		},
		Resources:       s.resources(),
		VolumeMounts:    s.mounts(),
		SecurityContext: s.securityContext(),
		// The gateway's container starts after the first success.
		StartupProbe: &corev1.Probe{ProbeHandler: probe("/startupz"), PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: s.startupSeconds()},
		// Checks the process only, never git, the API server or the gateway.
		LivenessProbe:            &corev1.Probe{ProbeHandler: probe("/healthz"), PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 6},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
}

func (s *sidecar) pullPolicy() corev1.PullPolicy {
	if p := s.gs.Spec.Agent.Image.PullPolicy; p != "" {
		return p
	}
	return s.defaults.Image.PullPolicy
}

// startupSeconds returns how long the first sync may delay the gateway's start.
func (s *sidecar) startupSeconds() int32 {
	return int32((effective.ProgressDeadline(&s.gs.Spec) + startupSlack).Seconds())
}

// ports returns two ports that no container of the pod declares. Containers share one network. With hostNetwork that is the
// node's, and the scheduler separates pods by their declared ports.
func (s *sidecar) ports() (health, metrics int32) {
	used := map[int32]bool{s.gs.Spec.Gateway.EffectivePort(): true, 8088: true, 8043: true, 8060: true} // Ignition's ports
	for _, list := range [][]corev1.Container{s.pod.Spec.InitContainers, s.pod.Spec.Containers} {
		for i := range list {
			for _, p := range list[i].Ports {
				used[p.ContainerPort], used[p.HostPort] = true, true
			}
		}
	}
	for n := int32(0); ; n++ { // 8082, 18082 to 58082, then 8084 and so on
		health = 8082 + n%6*10000 + n/6*2
		if health > 65000 || !used[health] && !used[health+1] {
			return health, health + 1
		}
	}
}

// image returns the agent's image: that of the pod's annotation if it is allowed, otherwise that of the GatewaySync merged over
// the default. A GatewaySync may name any version of the default repository. Another repository must be allowed, because
// otherwise anyone who can edit a GatewaySync could choose the program that gets the agent's token and Secrets. A digest takes
// precedence over a tag, but a tag of the GatewaySync takes precedence over a default digest. An invalid reference is ignored,
// because an init container that cannot be pulled keeps the gateway from starting.
func (s *sidecar) image() string {
	if asked, ok := gatewaypod.Annotation(s.pod.Annotations, v1alpha1.AnnotationAgentImage); ok && asked != "" {
		why := "does not match --allow-agent-image of the injector"
		switch {
		case !validation.IsImage(asked):
			why = "is not a valid image"
		case s.admits(asked):
			return asked
		}
		s.warn("annotation %s is ignored: image %.80q %s", v1alpha1.AnnotationAgentImage, asked, why)
	}
	want := s.gs.Spec.Agent.Image
	image := s.defaults.Image
	if want.Repository != "" {
		image.Repository = want.Repository
	}
	if want.Tag != "" || want.Digest != "" {
		image.Tag, image.Digest = want.Tag, want.Digest
	}
	composed := reference(image)
	if !validation.IsImage(composed) {
		s.warn("spec.agent.image of GatewaySync %s is ignored: %.200q is not a valid image; put the tag in tag and the digest in digest", s.gs.Name, composed)
		return reference(s.defaults.Image)
	}
	if image.Repository != s.defaults.Image.Repository && !s.admits(composed) {
		s.warn("spec.agent.image of GatewaySync %s is ignored: image %.200q does not match --allow-agent-image of the injector", s.gs.Name, composed)
		return reference(s.defaults.Image)
	}
	return composed
}

func reference(image v1alpha1.AgentImage) string {
	if image.Digest != "" {
		return image.Repository + "@" + image.Digest
	}
	return image.Repository + ":" + image.Tag
}

// admits reports whether a valid image matches an allowed prefix at a boundary: acme.example/agent matches acme.example/agent:1
// but not acme.example/agent-of-another:1.
func (s *sidecar) admits(image string) bool {
	for _, prefix := range s.defaults.AllowedImages {
		rest, ok := strings.CutPrefix(image, prefix)
		if prefix != "" && ok && (rest == "" || strings.ContainsAny(prefix[len(prefix)-1:], "/:@") || strings.ContainsAny(rest[:1], "/:@")) {
			return true
		}
	}
	return false
}

func (s *sidecar) warn(format string, args ...any) {
	s.warnings = append(s.warnings, fmt.Sprintf(format, args...))
}

// subPathPrefix is the prefix of the variables that a subPathExpr of the agent uses. Without it, the author of a pod could set
// variables that the agent's libraries read: HTTPS_PROXY, SSL_CERT_FILE, GODEBUG.
const subPathPrefix = "STOKER_SUBPATH_"

// renameVariables returns a subPathExpr with renamed variables, and these variables, taken from the environment of the container with
// the mount. ok is false if a variable is unknown or comes from a source that the agent must not read.
func renameVariables(expr string, env []corev1.EnvVar) (renamed string, used []corev1.EnvVar, ok bool) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(expr, "$")
		b.WriteString(before)
		if !found {
			return b.String(), used, true
		}
		b.WriteByte('$')
		expr = rest
		if escaped, dollar := strings.CutPrefix(rest, "$"); dollar {
			b.WriteByte('$')
			expr = escaped
			continue
		}
		reference, isReference := strings.CutPrefix(rest, "(")
		name, after, closed := strings.Cut(reference, ")")
		if !isReference || !closed {
			continue
		}
		v, known := lookUp(env, name)
		if !known {
			return "", nil, false
		}
		v.Name = subPathPrefix + name
		used = append(used, v)
		b.WriteString("(" + v.Name + ")")
		expr = after
	}
}

// lookUp returns the last variable with a name. It returns false if there is none, or if the value is neither a field of the pod nor a
// literal without references to other variables.
func lookUp(env []corev1.EnvVar, name string) (corev1.EnvVar, bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if env[i].Name != name {
			continue
		}
		v := env[i]
		switch {
		case v.ValueFrom == nil:
			return v, !strings.Contains(v.Value, "$(")
		case v.ValueFrom.FieldRef != nil:
			return v, true
		}
		return corev1.EnvVar{}, false
	}
	return corev1.EnvVar{}, false
}

// escapeEnv escapes $(NAME), so that the kubelet does not expand it.
func escapeEnv(value string) string { return strings.ReplaceAll(value, "$(", "$$(") }
