package reconcile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

func TestForeignPodsAreTrimmed(t *testing.T) {
	got, err := slim(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", Annotations: map[string]string{"a": "b"}, Labels: map[string]string{"x": "y"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}, ServiceAccountName: "web"},
	})
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop"}}, got)
	again, err := slim(got)
	require.NoError(t, err)
	assert.Equal(t, got, again)
}

// I7: large annotations and many labels of a gateway pod take no memory. A name that is too long is not taken for another one.
func TestGatewayPodsAreTrimmed(t *testing.T) {
	got, err := slim(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gw-0", Namespace: "plant", Annotations: map[string]string{
			"ignition-sync.io/inject": "true", v1alpha1.AnnotationCRName: strings.Repeat("x", 200_000), v1alpha1.AnnotationExcludePatterns: "a",
		}, Labels: map[string]string{v1alpha1.LabelInjection: "enabled", v1alpha1.LabelCRName: "line", "stoker.io/other": "x"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "gateway"}}},
	})
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gw-0", Namespace: "plant",
		Annotations: map[string]string{v1alpha1.AnnotationInject: "true", v1alpha1.AnnotationCRName: strings.Repeat("x", maxValue)},
		Labels:      map[string]string{v1alpha1.LabelInjection: "enabled", v1alpha1.LabelCRName: "line"}}}, got)
	again, err := slim(got)
	require.NoError(t, err)
	assert.Equal(t, got, again)
}
