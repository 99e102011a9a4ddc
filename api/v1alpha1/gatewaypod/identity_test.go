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
		{"no labels, no annotations", "gw-7d4b-x1", nil, nil, "gw-7d4b-x1"},
		{"annotation takes precedence", "p", m{name: "a", instance: "b"}, m{v1alpha1.AnnotationGatewayName: "blue"}, "blue"},
		{"older prefix", "p", nil, m{"ignition-sync.io/gateway-name": "blue"}, "blue"},
		{"both prefixes", "p", nil, m{"ignition-sync.io/gateway-name": "old", "stoker.io/gateway-name": "new"}, "new"},
		{"empty annotation", "p", m{name: "a"}, m{v1alpha1.AnnotationGatewayName: ""}, "a"},
		{"name label takes precedence over the instance", "p", m{name: "a", instance: "b"}, nil, "a"},
		{"generic name of the chart", "p", m{name: "ignition", instance: "site1"}, nil, "site1"},
		{"generic name of the chart without instance", "p-0", m{name: "ignition", index: "3", pod: "p-0"}, nil, "p-0"},
		{"invalid label", "p", m{name: "a b", instance: "c"}, nil, "c"},
		{"first pod of a StatefulSet", "gw-0", m{name: "a", index: "0", pod: "gw-0"}, nil, "a"},
		{"second pod of a StatefulSet", "gw-1", m{name: "a", index: "1", pod: "gw-1"}, nil, "a-1"},
		{"annotation of a pod template", "gw-2", m{index: "2"}, m{v1alpha1.AnnotationGatewayName: "blue"}, "blue-2"},
		{"instance label of a pod template", "gw-12", m{name: "ignition", instance: "site1", index: "12"}, nil, "site1-12"},
		{"pod name already has a number", "gw-1", m{index: "1", pod: "gw-1"}, nil, "gw-1"},
		{"no index label", "gw-3", m{name: "a", pod: "gw-3"}, nil, "a-3"},
		{"invalid index label", "gw-3", m{name: "a", index: "-1", pod: "gw-3"}, nil, "a-3"},
		{"pod of a Deployment", "gw-7d4b-12345", m{name: "a"}, nil, "a"},
		{"suffix with leading zeros", "gw-03", m{name: "a", pod: "gw-03"}, nil, "a"},
		{"suffix beyond 31 bits", "gw-99999999999", m{name: "a", pod: "x"}, nil, "a"},
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
		{"first pod of a StatefulSet", "line", "line-0", "line (pod line-0)"},
		{"second pod of a StatefulSet", "line-1", "line-1", "line-1"},
		{"own name", "area-4", "ignition-0", "area-4 (pod ignition-0)"},
		{"row without pod", "line", "", "line"},
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
