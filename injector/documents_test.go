package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
)

// splitDocuments reads a pod and its GatewaySyncs.
func splitDocuments(t *testing.T, text string) (*corev1.Pod, []*v1alpha1.GatewaySync) {
	t.Helper()
	pod := &corev1.Pod{}
	var syncs []*v1alpha1.GatewaySync
	for document := range strings.SplitSeq(text, "\n---\n") {
		if strings.Contains(document, "kind: "+v1alpha1.Kind+"\n") {
			gs := &v1alpha1.GatewaySync{}
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), gs))
			syncs = append(syncs, gs)
		} else if strings.Contains(document, "kind: Pod\n") {
			require.NoError(t, yaml.UnmarshalStrict([]byte(document), pod))
		}
	}
	return pod, syncs
}
