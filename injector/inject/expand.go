package inject

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

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

// lookUp returns the last variable with a name. It returns false if the value is neither a literal nor a field of the pod.
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
