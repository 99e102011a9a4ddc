package verb

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/kube"
)

// Look is Judge for whoever can ask the API server: where a gateway has failed and not all have dealt with the last request,
// its SyncReport says whether that was about it. The verdict counts beside an error, too: then SyncReports cannot be read, and
// a failure is known only once all gateways have dealt with the request.
func Look(ctx context.Context, client dynamic.Interface, gs *v1alpha1.GatewaySync, ref string) (Verdict, error) {
	v := Judge(gs, ref, nil)
	for _, b := range v.Behind {
		if v.Phase != Progressing || !b.Fails() {
			continue
		}
		list, _, err := kube.SyncReports(client, gs.Namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelCRName + "=" + gs.Name})
		if err != nil {
			return v, fmt.Errorf("SyncReports cannot be read, so a failure is known only once all gateways have dealt with the request: %w", err)
		}
		reports := make(map[string]*v1alpha1.SyncReport, len(list))
		for _, r := range list {
			reports[r.Name] = r
		}
		return Judge(gs, ref, reports), nil
	}
	return v, nil
}
