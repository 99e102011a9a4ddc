package kube

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// maxStuck bounds the text about one pod, in characters.
	maxStuck = 160
	// shortRun is the run time below which a container that ended and runs again counts as crashing repeatedly.
	shortRun = time.Minute
)

// Stuck returns why a pod does not run, or "" if it runs. The text changes rarely while the kubelet restarts a container or pulls an
// image repeatedly, because each change of the text causes a write of a status.
func Stuck(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return truncate("it cannot be scheduled: " + c.Message)
		}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w, last := c.State.Waiting, c.LastTerminationState.Terminated
		switch {
		case w != nil && (strings.Contains(w.Reason, "ImagePull") || w.Reason == "InvalidImageName" || w.Reason == "ErrImageNeverPull"):
			return truncate("the image of container " + c.Name + " cannot be pulled")
		case w != nil && strings.HasPrefix(w.Reason, "CreateContainer"):
			return truncate("container " + c.Name + " cannot be created: " + w.Message)
		case last != nil && crashing(&c, last):
			return truncate(fmt.Sprintf("container %s keeps crashing: %s, the last exit was %d%s",
				c.Name, restarts(c.RestartCount), last.ExitCode, exitReason(last)))
		}
	}
	if p.Status.Phase == corev1.PodPending {
		return Pending
	}
	return ""
}

// crashing reports whether a container that has ended before keeps ending. One that ended once and runs again does not.
func crashing(c *corev1.ContainerStatus, last *corev1.ContainerStateTerminated) bool {
	if c.State.Running != nil {
		return c.RestartCount > 1 && (!c.Ready || last.FinishedAt.Sub(last.StartedAt.Time) < shortRun)
	}
	return c.State.Terminated == nil || c.State.Terminated.ExitCode != 0
}

// restarts returns the number of restarts, rounded down, so that a container that crashes for days changes the text only a few times.
func restarts(n int32) string {
	if n <= 1 {
		return "1 restart"
	}
	for _, least := range []int32{100, 50, 20, 10, 5} {
		if n > least {
			return fmt.Sprintf("more than %d restarts", least)
		}
	}
	return fmt.Sprintf("%d restarts", n)
}

// exitReason returns the reason of an exit, unless it says no more than the exit code.
func exitReason(t *corev1.ContainerStateTerminated) string {
	if t.Reason == "" || t.Reason == "Error" || t.Reason == "Completed" {
		return ""
	}
	return " (" + t.Reason + ")"
}

// Pending is the result of Stuck for a pod that does not run yet and has no visible problem.
const Pending = string(corev1.PodPending)

// truncate replaces invalid UTF-8 and truncates a text to maxStuck characters.
func truncate(s string) string {
	if r := []rune(strings.ToValidUTF8(s, "\uFFFD")); len(r) > maxStuck {
		return string(r[:maxStuck-1]) + "…"
	}
	return s
}
