package validation

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
)

const (
	maxAlertWebhooks = 8
	maxAlertTopics   = 16
)

func validateAlerting(path *field.Path, a *v1alpha1.AlertingSpec) field.ErrorList {
	if a == nil {
		return nil
	}
	path = path.Child("webhooks")
	if len(a.Webhooks) > maxAlertWebhooks {
		return field.ErrorList{field.TooMany(path, len(a.Webhooks), maxAlertWebhooks)}
	}
	var errs field.ErrorList
	for i := range a.Webhooks {
		errs = append(errs, validateAlertWebhook(path.Index(i), &a.Webhooks[i])...)
	}
	return errs
}

func validateAlertWebhook(path *field.Path, w *v1alpha1.AlertWebhook) field.ErrorList {
	if w.Type == "" {
		return field.ErrorList{field.Required(path.Child("type"), "use slack, pagerduty, teams, webhook or commit-status")}
	}
	errs := fielderr.OneOf(path.Child("type"), w.Type, v1alpha1.AlertTypes...)
	keyed := w.Type == v1alpha1.AlertPagerDuty || w.Type == v1alpha1.AlertCommitStatus
	switch {
	case !keyed && w.URLSecretRef == nil:
		errs = append(errs, field.Required(path.Child("urlSecretRef"), "name the Secret with the URL"))
	case w.Type == v1alpha1.AlertCommitStatus && w.URLSecretRef != nil:
		errs = append(errs, field.Forbidden(path.Child("urlSecretRef"), "the forge is that of git.repo"))
	}
	switch {
	case keyed && w.IntegrationKeySecretRef == nil:
		errs = append(errs, field.Required(path.Child("integrationKeySecretRef"), "name the Secret with the integration key or the token"))
	case !keyed && w.IntegrationKeySecretRef != nil:
		errs = append(errs, field.Forbidden(path.Child("integrationKeySecretRef"), "only pagerduty and commit-status use it"))
	}
	if w.Type == v1alpha1.AlertCommitStatus && len(w.Topics) > 0 {
		errs = append(errs, field.Forbidden(path.Child("topics"), "each commit has one status"))
	}
	if w.Type != v1alpha1.AlertWebhookCE && w.SigningSecretRef != nil {
		errs = append(errs, field.Forbidden(path.Child("signingSecretRef"), "only messages of the type webhook are signed"))
	}
	errs = append(errs, validateSecret(path.Child("urlSecretRef"), w.URLSecretRef)...)
	errs = append(errs, validateSecret(path.Child("integrationKeySecretRef"), w.IntegrationKeySecretRef)...)
	errs = append(errs, validateSecret(path.Child("signingSecretRef"), w.SigningSecretRef)...)
	errs = append(errs, validateSecret(path.Child("caSecretRef"), w.CASecretRef)...)
	return append(errs, validateTopics(path.Child("topics"), w.Type, w.Topics)...)
}

func validateTopics(path *field.Path, kind v1alpha1.AlertType, topics []v1alpha1.AlertTopic) field.ErrorList {
	if len(topics) > maxAlertTopics {
		return field.ErrorList{field.TooMany(path, len(topics), maxAlertTopics)}
	}
	var errs field.ErrorList
	for i, topic := range topics {
		switch at := path.Index(i); {
		case kind == v1alpha1.AlertPagerDuty && topic.HappensOnce():
			errs = append(errs, field.Invalid(at, topic, "it happens once and has no end: an incident cannot be about it"))
		case !slices.Contains(v1alpha1.AlertTopics(), topic):
			errs = append(errs, field.NotSupported(at, v1alpha1.AlertTopic(fielderr.Shorten(string(topic))), v1alpha1.AlertTopics()))
		case slices.Contains(topics[:i], topic):
			errs = append(errs, field.Duplicate(at, topic))
		}
	}
	return errs
}
