package verb

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// Look is Judge for callers that can query the API server. While a request is open, it reads the SyncReports to find out which
// gateways have handled it. Before it returns Succeeded, it checks that the lock of the SyncTarget is renewed. The verdict is
// valid even with an error; it is then based on less evidence.
func Look(ctx context.Context, clients kube.Clients, gs *v1alpha1.GatewaySync, ref string) (Verdict, error) {
	var failed error
	e := Evidence{Now: clients.Now()}
	v := Judge(gs, ref, e)
	if v.open {
		list, _, err := kube.SyncReports(clients.Dynamic, gs.Namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelCRName + "=" + gs.Name})
		if err != nil {
			return v, fmt.Errorf("SyncReports cannot be read, so it is not known which gateways have dealt with the request, or failed since: %w", err)
		}
		e.Reports = make(map[string]*v1alpha1.SyncReport, len(list))
		for _, r := range list {
			e.Reports[r.Name] = r
		}
		v = Judge(gs, ref, e)
	}
	if v.Phase == Succeeded {
		e.Target, failed = targetOf(ctx, clients, gs)
		e.Now = clients.Now()
		v = Judge(gs, ref, e)
	}
	return v, failed
}

// targetOf returns the SyncTarget of gs. If there is none, it returns an empty one, which has no lead.
func targetOf(ctx context.Context, clients kube.Clients, gs *v1alpha1.GatewaySync) (*v1alpha1.SyncTarget, error) {
	t, err := kube.SyncTargets(clients.Dynamic, gs.Namespace).Get(ctx, gs.Name)
	switch _, later := errors.AsType[*kube.UndecodableError](err); {
	case apierrors.IsNotFound(err):
		return &v1alpha1.SyncTarget{}, nil
	case later:
		return nil, nil // of another version: the age of the status decides
	case err != nil:
		return nil, fmt.Errorf("the SyncTarget cannot be read, so that no agent leads is seen only after %s: %w", v1alpha1.ConfirmedFor, err)
	}
	return t, nil
}
