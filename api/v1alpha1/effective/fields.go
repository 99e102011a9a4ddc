package effective

import (
	"cmp"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

// PollingInterval returns how often the lead polls git. The error names the field.
func PollingInterval(p *v1alpha1.PollingSpec) (time.Duration, error) {
	return duration("spec.polling.interval", p.Interval, v1alpha1.DefaultPollingInterval)
}

// ProgressDeadline returns how long a sync may take before it is reported as stalled. An invalid value counts as the default.
func ProgressDeadline(s *v1alpha1.GatewaySyncSpec) time.Duration {
	if d, problem := syntax.ParseDuration(s.ProgressDeadline, v1alpha1.MinDuration, v1alpha1.MaxDuration); problem == "" {
		return d
	}
	return v1alpha1.DefaultProgressDeadline
}

// RefreshInterval returns how often a ConfigSync is compared with git and with the cluster. The error names the field.
func RefreshInterval(s *v1alpha1.ConfigSyncSpec) (time.Duration, error) {
	return duration("spec.refreshInterval", s.RefreshInterval, v1alpha1.DefaultRefreshInterval)
}

// ConfigProgressDeadline returns how long a run of a ConfigSync waits until the objects are healthy. The error names the field.
func ConfigProgressDeadline(s *v1alpha1.ConfigSyncSpec) (time.Duration, error) {
	return duration("spec.progressDeadline", s.ProgressDeadline, v1alpha1.DefaultProgressDeadline)
}

// Debounce returns how long the agent waits after the last save before it proposes changes. The error names the field.
func Debounce(b *v1alpha1.BidirectionalSpec) (time.Duration, error) {
	value := cmp.Or(b.Debounce, v1alpha1.DefaultDebounce)
	d, problem := syntax.ParseDuration(value, v1alpha1.MinDuration, v1alpha1.MaxDebounce)
	if problem != "" {
		return 0, v1alpha1.NewError(v1alpha1.ReasonProfilesInvalid, "spec.bidirectional.debounce: %.40q %s", value, problem)
	}
	return d, nil
}

// ValidationTimeout returns how long an answer of the webhook may take.
func ValidationTimeout(w *v1alpha1.ValidationWebhook) time.Duration {
	if d, problem := syntax.ParseDuration(w.Timeout, v1alpha1.MinDuration, v1alpha1.MaxValidationTimeout); problem == "" {
		return d
	}
	return v1alpha1.DefaultValidationTimeout
}

// MaxFileBytes returns the maximum size of a proposed file in bytes. The error names the field.
func MaxFileBytes(g *v1alpha1.ProposalGuardrails) (int64, error) {
	return size("spec.bidirectional.guardrails.maxFileSize", cmp.Or(g.MaxFileSize, v1alpha1.DefaultMaxFileSize))
}

// MaxTotalBytes returns the maximum size of all files together in bytes. The error names the field.
func MaxTotalBytes(g *v1alpha1.ProposalGuardrails) (int64, error) {
	return size("spec.bidirectional.guardrails.maxTotalSize", cmp.Or(g.MaxTotalSize, v1alpha1.DefaultMaxTotalSize))
}

// size parses the value of a field.
func size(field, value string) (int64, error) {
	n, problem := syntax.ParseSize(value)
	if problem != "" {
		return 0, v1alpha1.NewError(v1alpha1.ReasonProfilesInvalid, "%s: %.40q %s", field, value, problem)
	}
	return n, nil
}

// duration parses the value of a field, which is fallback if it is empty.
func duration(field, value string, fallback time.Duration) (time.Duration, error) {
	if value == "" {
		return fallback, nil
	}
	d, problem := syntax.ParseDuration(value, v1alpha1.MinDuration, v1alpha1.MaxDuration)
	if problem != "" {
		return 0, v1alpha1.NewError(v1alpha1.ReasonProfilesInvalid, "%s: %.40q %s", field, value, problem)
	}
	return d, nil
}
