package inject

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// expansion returns the variables that a subPathExpr refers to, from the environment of the container that has it. It is
// not ok where one of them is not known, or comes from where the agent must not look.
func expansion(expr string, env []corev1.EnvVar) (used []corev1.EnvVar, ok bool) {
	for {
		_, rest, found := strings.Cut(expr, "$")
		if !found {
			return used, true
		}
		if escaped, dollar := strings.CutPrefix(rest, "$"); dollar {
			expr = escaped
			continue
		}
		reference, isReference := strings.CutPrefix(rest, "(")
		name, after, closed := strings.Cut(reference, ")")
		if !isReference || !closed {
			expr = rest
			continue
		}
		v, known := lookUp(env, name)
		if !known {
			return nil, false
		}
		used = append(used, v)
		expr = after
	}
}

// lookUp finds a variable whose value is written down, or is a field of the pod. The last one of a name counts.
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

func sameSource(a, b corev1.EnvVar) bool {
	if a.ValueFrom == nil || b.ValueFrom == nil || a.ValueFrom.FieldRef == nil || b.ValueFrom.FieldRef == nil {
		return equality.Semantic.DeepEqual(a, b)
	}
	return a.ValueFrom.FieldRef.FieldPath == b.ValueFrom.FieldRef.FieldPath
}

// verbatim writes a value so that the kubelet does not take $(NAME) in it for a reference.
func verbatim(value string) string { return strings.ReplaceAll(value, "$(", "$$(") }
