package kube

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStuckSaysHowContainerEnded(t *testing.T) {
	ended := metav1.NewTime(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	for name, c := range map[string]struct {
		restarts int32
		last     corev1.ContainerStateTerminated
		want     string
	}{
		"out of memory": {1, corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}, "container gateway keeps crashing: 1 restart, the last exit was 137 (OOMKilled)"},
		"error":         {4, corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}, "container gateway keeps crashing: 4 restarts, the last exit was 1"},
		"for days":      {37, corev1.ContainerStateTerminated{ExitCode: 0, Reason: "Completed"}, "container gateway keeps crashing: more than 20 restarts, the last exit was 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c.last.StartedAt, c.last.FinishedAt = ended, ended
			p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				Name: "gateway", RestartCount: c.restarts, LastTerminationState: corev1.ContainerState{Terminated: &c.last},
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			}}}}
			assert.Equal(t, c.want, Stuck(p))
		})
	}
}
