package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/effective"
	"stoker.io/stoker/internal/backoff"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// syncFinalizer adds or removes the finalizer, as spec.deletionPolicy says. It is called before a run applies the first object. It returns
// the ConfigSync as it is after the write.
func (r *Reconciler) syncFinalizer(ctx context.Context, cs *v1alpha1.ConfigSync) (*v1alpha1.ConfigSync, error) {
	has := slices.Contains(cs.Finalizers, v1alpha1.FinalizerConfigSync)
	switch wanted := cs.Spec.DeletionPolicy == v1alpha1.ConfigDelete; {
	case wanted && !has:
		return r.patchFinalizers(ctx, cs, append(slices.Clone(cs.Finalizers), v1alpha1.FinalizerConfigSync))
	case has && !wanted:
		return r.removeFinalizer(ctx, cs)
	}
	return cs, nil
}

// removeFinalizer removes the finalizer.
func (r *Reconciler) removeFinalizer(ctx context.Context, cs *v1alpha1.ConfigSync) (*v1alpha1.ConfigSync, error) {
	return r.patchFinalizers(ctx, cs, slices.DeleteFunc(slices.Clone(cs.Finalizers), func(f string) bool { return f == v1alpha1.FinalizerConfigSync }))
}

// patchFinalizers replaces the finalizers of a ConfigSync. It fails if the ConfigSync changed since it was read.
func (r *Reconciler) patchFinalizers(ctx context.Context, cs *v1alpha1.ConfigSync, list []string) (*v1alpha1.ConfigSync, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": cs.UID, "resourceVersion": cs.ResourceVersion, "finalizers": list}})
	if err != nil {
		return nil, err
	}
	changed, err := kube.ConfigSyncs(r.ProgramClients.Dynamic, cs.Namespace).Patch(ctx, cs.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("write the finalizers of ConfigSync %s: %w", cs.Name, err)
	}
	return changed, nil
}

// finalize deletes the objects of a ConfigSync that is being deleted, if the policy says so, and then removes the finalizer. It returns the
// pause until the next attempt, or 0. In a terminating namespace it only removes the finalizer: the rights of the account may be gone
// already, and the namespace deletes the objects.
func (r *Reconciler) finalize(ctx context.Context, cs *v1alpha1.ConfigSync, s *state) time.Duration {
	if !slices.Contains(cs.Finalizers, v1alpha1.FinalizerConfigSync) {
		return 0
	}
	key := cache.MetaObjectToName(cs)
	again := func(err error) time.Duration { return min(r.retry(key, s, err), backoff.Jitter(maxWait)) }
	if cs.Spec.DeletionPolicy == v1alpha1.ConfigDelete {
		terminates, err := r.isTerminating(ctx, cs.Namespace)
		if err == nil && !terminates {
			err = r.deleteObjects(ctx, cs)
		}
		if err != nil {
			return again(err)
		}
	}
	now, err := kube.ConfigSyncs(r.ProgramClients.Dynamic, cs.Namespace).Get(ctx, cs.Name) // remove may have written its status
	if err == nil && now.UID == cs.UID {
		_, err = r.removeFinalizer(ctx, now)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return again(err)
	}
	return 0
}

// deleteObjects deletes the objects of a ConfigSync. If the account lacks rights, or the kubeconfig is gone, deleteObjects fails until spec.progressDeadline after the
// deletion of the ConfigSync. After that it leaves the objects in the cluster.
func (r *Reconciler) deleteObjects(ctx context.Context, cs *v1alpha1.ConfigSync) error {
	engine := r.engine(ctx, cs)
	left, err := engine.Remove(ctx, cs)
	switch deadline, invalid := effective.ConfigProgressDeadline(&cs.Spec); {
	case err == nil:
		engine.SendReleased(ctx, cs, left.Objects, "")
	case left.Forbidden && (invalid != nil || r.ProgramClients.Now().Sub(cs.DeletionTimestamp.Time) >= deadline):
		engine.SendReleased(ctx, cs, left.Objects, fmt.Sprintf("they could not be deleted until %s after the deletion of the ConfigSync: %s", deadline, failure.Cut(err.Error(), 300)))
	default:
		return err
	}
	return nil
}

// isTerminating reports whether a namespace is being deleted.
func (r *Reconciler) isTerminating(ctx context.Context, namespace string) (bool, error) {
	ns, err := r.ProgramClients.Core.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read namespace %s: %w", namespace, err)
	}
	return ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating, nil
}
