package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/plan"
	"stoker.io/stoker/internal/failure"
)

// maxText bounds the text that is shown of an API server's answer, or of the health of an object, in bytes.
const maxText = 500

// Explain turns a refusal of the API server into an error with a reason. live is the object in the cluster, or nil. The error
// quotes the API server only for objects without values of Secrets, because API servers and admission webhooks repeat values.
func (c *Client) Explain(ctx context.Context, o manifest.Object, live *unstructured.Unstructured, err error) *failure.Error {
	if own, ok := errors.AsType[*failure.Error](err); ok {
		return own
	}
	switch text := answerText(o, err); {
	case apierrors.IsForbidden(err):
		return failure.New(v1alpha1.ReasonApplyForbidden, "the API server forbids it: %s", text)
	case apierrors.IsConflict(err):
		return failure.New(v1alpha1.ReasonApplyConflict, "another manager owns fields that git sets: %s; remove them from git, or set spec.apply.conflictPolicy: gitWins", text)
	case apierrors.IsNotFound(err) && o.GetNamespace() != "":
		return failure.New(v1alpha1.ReasonApplyRefused, "namespace %s does not exist: create it, or add it to the commit", o.GetNamespace())
	case apierrors.IsInvalid(err) && live != nil && c.wouldCreate(ctx, o):
		advice := "delete the object yourself, and the next run creates it"
		switch {
		case plan.DeletesClaims(live):
			advice = "it is not recreated, because that would delete its PersistentVolumeClaims: first set whenDeleted: Retain of spec.persistentVolumeClaimRetentionPolicy in a commit of its own"
		case !o.ID().NeverPruned():
			advice = "with the annotation " + v1alpha1.AnnotationConfigRecreate + ": enabled in its manifest, the run deletes the object and creates it again, and its pods stop; or " + advice
		}
		return failure.New(v1alpha1.ReasonImmutableField, "git changes a field that Kubernetes never changes (%s): %s", immutable(o, live), advice)
	default:
		return failure.New(v1alpha1.ReasonApplyRefused, "the API server refuses it: %s", text)
	}
}

// immutable names the fields that git changes in an object that the API server refuses to change.
func immutable(o manifest.Object, live *unstructured.Unstructured) string {
	fields := plan.Differences(o, live)
	fields = slices.DeleteFunc(fields, func(f string) bool { return strings.HasPrefix(f, "metadata") })
	if len(fields) == 0 {
		return "one that a person added, or that has a default"
	}
	return "one of " + strings.Join(fields[:min(len(fields), 5)], ", ")
}

// wouldCreate reports whether the API server would create the object if it did not exist. It dry-runs the creation under another name. If
// that succeeds, the object is valid, so the API server refused a change of an immutable field. API servers use the same code for both errors.
func (c *Client) wouldCreate(ctx context.Context, o manifest.Object) bool {
	r, err := c.resourceOf(o)
	if err != nil {
		return false
	}
	other := o.DeepCopy()
	other.SetName(strings.TrimRight(o.GetName()[:min(len(o.GetName()), 40)], "-.") + "-dry-run")
	_, err = r.Create(ctx, other, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err == nil || apierrors.IsAlreadyExists(err)
}

// answerText returns the part of an API server's answer that may be shown.
func answerText(o manifest.Object, err error) string {
	status := apierrors.APIStatus(nil)
	if !o.Confidential() && errors.As(err, &status) {
		return oneLine(status.Status().Message)
	}
	return redactedText(err)
}

// redactedText returns what may be shown of any error of a request: not the text of an API server's answer.
func redactedText(err error) string {
	if own, ok := errors.AsType[*failure.Error](err); ok {
		return own.Error()
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return "no answer"
	}
	s := status.Status()
	var fields []string
	if s.Details != nil {
		for _, cause := range s.Details.Causes {
			// Only the root of a field: the rest may hold keys that come from a template.
			root, _, _ := strings.Cut(strings.TrimPrefix(cause.Field, "."), ".")
			if root, _, _ = strings.Cut(root, "["); root != "" && !slices.Contains(fields, root) {
				fields = append(fields, root)
			}
		}
	}
	text := fmt.Sprintf("%s (%d)", s.Reason, s.Code)
	if len(fields) > 0 {
		text += " in " + strings.Join(fields, ", ")
	}
	return text + "; the text is not shown because it may hold a value of a Secret"
}

func oneLine(text string) string {
	return failure.Cut(strings.Join(strings.Fields(text), " "), maxText)
}
