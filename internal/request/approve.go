package request

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/annotation"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// Approve approves a stage of the rollout that is under way, for the commit of that rollout and no other; "" is the stage that waits. It
// fails if the rollout is not of commit, a commit or its first digits; "" is any. by is the name by which the API server knows the caller,
// or "". Only the error for a wrong argument is an *InvalidError.
func (s *Setter) Approve(ctx context.Context, namespace, name, stage, commit, by string) (Answer, error) {
	return s.approve(ctx, namespace, name, commit, by, func(gs *v1alpha1.GatewaySync, commit string) (string, string, error) {
		return stageToApprove(gs, stage, commit)
	})
}

// ApproveWindow approves that the gateways follow the target commit although no maintenance window allows it. commit and by are as for
// Approve.
func (s *Setter) ApproveWindow(ctx context.Context, namespace, name, commit, by string) (Answer, error) {
	return s.approve(ctx, namespace, name, commit, by, windowToApprove)
}

// approve approves the stage that find returns for the commit that it returns.
func (s *Setter) approve(ctx context.Context, namespace, name, commit, by string, find func(*v1alpha1.GatewaySync, string) (string, string, error)) (Answer, error) {
	if commit = strings.ToLower(commit); commit != "" && !syntax.IsCommitPrefix(commit) {
		return Answer{}, invalid("%.80q is not a commit: write 7 to 40 of its hexadecimal digits", commit)
	}
	return s.changeGateways(ctx, namespace, name, func(gs *v1alpha1.GatewaySync) (map[string]*string, Answer, error) {
		stage, of, err := find(gs, commit)
		if err != nil {
			return nil, Answer{}, err
		}
		answer := Answer{Outcome: Set, At: gs.Annotations[v1alpha1.AnnotationRequestedAt], Message: "stage " + stage + " for commit " + of}
		if stage == v1alpha1.WindowApproval {
			answer.Message = "no maintenance window delays commit " + of
		}
		if annotation.Approved(gs, stage, of) {
			answer.Outcome, answer.Message = Unchanged, answer.Message+", as before"
			return nil, answer, nil
		}
		value := annotation.Approve(gs.Annotations[v1alpha1.AnnotationApproved], stage, of, by)
		return map[string]*string{v1alpha1.AnnotationApproved: &value}, answer, nil
	})
}

// stageToApprove returns the stage and the commit that an approval is for. A stage that is named can be approved in advance.
func stageToApprove(gs *v1alpha1.GatewaySync, stage, commit string) (string, string, error) {
	r, waits := gs.Status.Rollout, ""
	if a := gs.Status.Approval; a != nil {
		waits = a.Stage
	}
	switch {
	case r == nil:
		return "", "", fmt.Errorf("nothing waits for an approval: %s rolls out all gateways at once; spec.deployment.stages has stages with requireApproval", gs.Name)
	case r.Phase == v1alpha1.RolloutAborted:
		return "", "", fmt.Errorf("the rollout of %s was aborted, and an approval does not continue it: roll out another commit, or try this one again: stoker retry %s", syntax.ShortCommit(r.Commit), gs.Name)
	case !syntax.IsCommit(r.Commit) || r.Phase == v1alpha1.RolloutDone && waits == "":
		return "", "", fmt.Errorf("nothing waits for an approval: the rollout of %s is done", syntax.ShortCommit(r.Commit))
	case !strings.HasPrefix(r.Commit, commit):
		return "", "", fmt.Errorf("the rollout is of commit %s and not of %s: see what it brings, and approve that", r.Commit, commit)
	case stage == "" && waits == "":
		return "", "", fmt.Errorf("nothing waits for an approval: the rollout of %s is %s; name a stage to approve it in advance", syntax.ShortCommit(r.Commit), r.Phase)
	case stage == "":
		stage = waits // every agent can write the status, so the name is checked, too
	}
	if names := gs.StageNames(); !slices.Contains(names, stage) {
		return "", "", invalid("%s has no stage %.80q: its stages are %s", gs.Name, stage, strings.Join(names, ", "))
	}
	return stage, r.Commit, nil
}

// windowToApprove returns what stands for the maintenance windows in an approval, and the target commit.
func windowToApprove(gs *v1alpha1.GatewaySync, commit string) (string, string, error) {
	a, t := gs.Status.Approval, gs.Status.Target
	switch {
	case len(gs.MaintenanceWindows()) == 0:
		return "", "", fmt.Errorf("%s has no maintenance windows: spec.deployment.windows is empty", gs.Name)
	case t == nil || !syntax.IsCommit(t.Commit):
		return "", "", fmt.Errorf("the desired commit of %s is not known yet", gs.Name)
	case !strings.HasPrefix(t.Commit, commit):
		return "", "", fmt.Errorf("the desired commit is %s and not %s: check what it changes, and approve it", t.Commit, commit)
	case !annotation.WindowApproved(gs, t.Commit) && (a == nil || !a.Window || a.Commit != t.Commit):
		return "", "", fmt.Errorf("no gateway waits for a maintenance window to get %s", syntax.ShortCommit(t.Commit))
	}
	return v1alpha1.WindowApproval, t.Commit, nil
}
