package lead

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
)

func TestPodStuck(t *testing.T) {
	waits := func(reason string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: "gateway", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
	for _, c := range []struct {
		about  string
		status corev1.PodStatus
		want   string
	}{
		{"running", corev1.PodStatus{Phase: corev1.PodRunning}, ""},
		{"starting", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waits("PodInitializing")}, ""},
		{"no image", corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: waits("ImagePullBackOff")}, "the image of container gateway cannot be pulled"},
	} {
		t.Run(c.about, func(t *testing.T) {
			kept, err := stripped(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gw-0", Labels: map[string]string{v1alpha1.LabelCRName: "site"}}, Status: c.status})
			require.NoError(t, err)
			assert.Equal(t, c.want, podOf(kept.(*corev1.Pod)).Stuck)
		})
	}
}
