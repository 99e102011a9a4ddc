package gatewaypod_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/gatewaypod"
)

func TestGatewayName(t *testing.T) {
	type m = map[string]string
	const (
		name, instance = "app.kubernetes.io/name", "app.kubernetes.io/instance"
		index, pod     = "apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name"
	)
	for _, c := range []struct {
		about, pod          string
		labels, annotations m
		want                string
	}{
		{"without anything it is the pod's name", "gw-7d4b-x1", nil, nil, "gw-7d4b-x1"},
		{"the annotation comes first", "p", m{name: "a", instance: "b"}, m{v1alpha1.AnnotationGatewayName: "blue"}, "blue"},
		{"the older prefix is read", "p", nil, m{"ignition-sync.io/gateway-name": "blue"}, "blue"},
		{"the newer prefix wins", "p", nil, m{"ignition-sync.io/gateway-name": "old", "stoker.io/gateway-name": "new"}, "new"},
		{"an empty annotation is none", "p", m{name: "a"}, m{v1alpha1.AnnotationGatewayName: ""}, "a"},
		{"the name label comes before the instance", "p", m{name: "a", instance: "b"}, nil, "a"},
		{"the chart's generic name is passed over", "p", m{name: "ignition", instance: "site1"}, nil, "site1"},
		{"a generic name without instance leaves the pod's name", "p-0", m{name: "ignition", index: "3", pod: "p-0"}, nil, "p-0"},
		{"a label that cannot be a name is passed over", "p", m{name: "a b", instance: "c"}, nil, "c"},
		{"the first pod of a StatefulSet has no number", "gw-0", m{name: "a", index: "0", pod: "gw-0"}, nil, "a"},
		{"the second one has", "gw-1", m{name: "a", index: "1", pod: "gw-1"}, nil, "a-1"},
		{"an annotation on a template is numbered, too", "gw-2", m{index: "2"}, m{v1alpha1.AnnotationGatewayName: "blue"}, "blue-2"},
		{"the instance is numbered, too", "gw-12", m{name: "ignition", instance: "site1", index: "12"}, nil, "site1-12"},
		{"the pod's name is not numbered again", "gw-1", m{index: "1", pod: "gw-1"}, nil, "gw-1"},
		{"without the index the name's suffix counts", "gw-3", m{name: "a", pod: "gw-3"}, nil, "a-3"},
		{"a broken index is not an index", "gw-3", m{name: "a", index: "-1", pod: "gw-3"}, nil, "a-3"},
		{"a suffix of a Deployment's pod is none", "gw-7d4b-12345", m{name: "a"}, nil, "a"},
		{"a suffix with leading zeros is none", "gw-03", m{name: "a", pod: "gw-03"}, nil, "a"},
		{"a number beyond 31 bits is none", "gw-99999999999", m{name: "a", pod: "x"}, nil, "a"},
	} {
		t.Run(c.about, func(t *testing.T) {
			got, err := gatewaypod.GatewayName(c.pod, c.labels, c.annotations)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestGatewayLabel(t *testing.T) {
	for _, c := range []struct{ about, name, pod, want string }{
		{"the first pod of a StatefulSet", "line", "line-0", "line (pod line-0)"},
		{"the second one", "line-1", "line-1", "line-1"},
		{"a name of its own", "area-4", "ignition-0", "area-4 (pod ignition-0)"},
		{"a row that does not hold its pod", "line", "", "line"},
	} {
		t.Run(c.about, func(t *testing.T) { assert.Equal(t, c.want, gatewaypod.GatewayLabel(c.name, c.pod)) })
	}
}

func TestGatewayNameInvalidAnnotation(t *testing.T) {
	for _, value := range []string{" ", "a b", "../a", "a/b", "-a", "a-", "{{.x}}", "a\n", "é", strings.Repeat("a", 201)} {
		t.Run(fmt.Sprintf("%.20q", value), func(t *testing.T) {
			_, err := gatewaypod.GatewayName("p", map[string]string{"app.kubernetes.io/name": "other"}, map[string]string{v1alpha1.AnnotationGatewayName: value})
			var named *v1alpha1.Error
			require.ErrorAs(t, err, &named)
			assert.Equal(t, v1alpha1.ReasonInvalidAnnotation, named.Reason)
			assert.Contains(t, err.Error(), v1alpha1.AnnotationGatewayName)
		})
	}
}
