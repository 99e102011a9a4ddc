// Package admission implements the webhook that adds the agent to new pods. A pod that cannot have an agent is admitted without
// one and with a warning, unless its annotations require the agent.
package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/internal/failure"
)

// maxWarning is the length in bytes up to which the API server is sure to show a warning.
const maxWarning = 256

// maxUID bounds the uid, which is part of the answer.
const maxUID = 128

// notReviewError means that a request is not a review. The text goes to the sender.
type notReviewError string

func (e notReviewError) Error() string { return string(e) }

// parse decodes a review. The error is a notReviewError.
func parse(body []byte) (*admissionv1.AdmissionRequest, error) {
	review := admissionv1.AdmissionReview{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &review); err != nil {
		return nil, notReviewError("the body is not an AdmissionReview: " + err.Error())
	}
	if review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview" {
		return nil, notReviewError(fmt.Sprintf("%.40q %.40q is not supported: send %s AdmissionReview", review.APIVersion, review.Kind, admissionv1.SchemeGroupVersion))
	}
	switch {
	case review.Request == nil:
		return nil, notReviewError("the AdmissionReview has no request")
	case review.Request.UID == "" || len(review.Request.UID) > maxUID:
		return nil, notReviewError("the request has no uid, or its uid is too long")
	}
	return review.Request, nil
}

// review answers a request.
func (h *Handler) review(ctx context.Context, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	createsPod := req.Operation == admissionv1.Create && req.SubResource == "" && req.Resource == metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	if !createsPod {
		return allow(req.UID)
	}
	pod := &corev1.Pod{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(req.Object.Raw, pod); err != nil {
		if !dryRun(req) {
			h.Metrics.Injection("failed", "")
			h.Log.Warn("decoding a pod failed", "namespace", req.Namespace, "error", err)
		}
		return allow(req.UID, fmt.Sprintf("stoker: the pod could not be decoded and was admitted unchanged: %v", err))
	}
	pod.Namespace = req.Namespace
	ops, decision := h.decide(ctx, pod)
	return h.answer(req, pod, ops, decision)
}

func (h *Handler) decide(ctx context.Context, pod *corev1.Pod) ([]inject.Op, inject.Decision) {
	if !inject.Requested(pod.Annotations) || inject.Has(pod) {
		return inject.Patch(pod, nil, h.Defaults)
	}
	if why := h.Scope.Excluded(pod.Namespace); why != "" {
		return nil, inject.Decision{Reason: v1alpha1.ReasonNamespaceExcluded, Message: why}
	}
	candidates, err := h.Find.For(ctx, pod.Namespace, inject.GatewaySyncName(pod.Annotations))
	if err != nil {
		return nil, inject.Decision{Reason: v1alpha1.ReasonGatewaySyncUnreadable, Message: err.Error()}
	}
	gs, decision := inject.Choose(pod, candidates)
	if gs == nil {
		return nil, decision
	}
	return inject.Patch(pod, gs, h.Defaults)
}

func (h *Handler) answer(req *admissionv1.AdmissionRequest, pod *corev1.Pod, ops []inject.Op, d inject.Decision) *admissionv1.AdmissionResponse {
	res := allow(req.UID)
	for _, w := range d.Warnings {
		res.Warnings = append(res.Warnings, failure.Cut("stoker: "+w, maxWarning))
	}
	result := "injected"
	switch d.Reason {
	case "":
		patch, err := json.Marshal(ops)
		if err != nil { // cannot happen with plain values
			return allow(req.UID, "stoker: the patch could not be written: "+err.Error())
		}
		res.Patch, res.PatchType = patch, new(admissionv1.PatchTypeJSONPatch)
	case v1alpha1.ReasonNotRequested, v1alpha1.ReasonAlreadyInjected:
		result = "unchanged"
	default:
		result = "skipped"
		res.Warnings = append(res.Warnings, failure.Cut(fmt.Sprintf("stoker: the pod starts without an agent (%s): %s", d.Reason, d.Message), maxWarning))
		if inject.Required(pod.Annotations) {
			result = "refused"
			res = refuse(req.UID, d)
		}
	}
	if !dryRun(req) {
		h.Metrics.Injection(result, d.Reason)
		h.Log.Info("review", "result", result, "namespace", req.Namespace, "pod", podName(pod), "gatewaysync", d.GatewaySync, "gateway", d.Gateway,
			"reason", string(d.Reason), "message", d.Message)
	}
	return res
}

func dryRun(req *admissionv1.AdmissionRequest) bool { return req.DryRun != nil && *req.DryRun }

func podName(pod *corev1.Pod) string {
	if pod.Name == "" {
		return pod.GenerateName + "…"
	}
	return pod.Name
}

func allow(uid types.UID, warnings ...string) *admissionv1.AdmissionResponse {
	res := &admissionv1.AdmissionResponse{UID: uid, Allowed: true}
	for _, w := range warnings {
		res.Warnings = append(res.Warnings, failure.Cut(w, maxWarning))
	}
	return res
}

func refuse(uid types.UID, d inject.Decision) *admissionv1.AdmissionResponse {
	code, reason := int32(http.StatusForbidden), metav1.StatusReasonForbidden
	if d.Reason == v1alpha1.ReasonGatewaySyncUnreadable { // the same pod may be admitted later
		code, reason = http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable
	}
	return &admissionv1.AdmissionResponse{UID: uid, Result: &metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: fmt.Sprintf("annotation %s requires an agent, and the pod cannot have one (%s): %s",
			v1alpha1.AnnotationRequire, d.Reason, d.Message),
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseType(d.Reason), Message: d.Message}}},
	}}
}
