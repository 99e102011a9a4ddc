package validation

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"regexp"
	"unicode/utf8"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
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

func validateValidation(path *field.Path, gs *v1alpha1.GatewaySync) field.ErrorList {
	if gs.Spec.Validation == nil {
		return nil
	}
	errs := fielderr.OneOf(path.Child("references"), gs.Spec.Validation.References, v1alpha1.ReferencesIgnore, v1alpha1.ReferencesWarn, v1alpha1.ReferencesRefuse)
	w := gs.Spec.Validation.Webhook
	if w == nil {
		return errs
	}
	path = path.Child("webhook")
	switch at := path.Child("url"); {
	case w.URL == "":
		errs = append(errs, field.Required(at, "name the URL of the service"))
	case utf8.RuneCountInString(w.URL) > maxURL:
		errs = append(errs, field.TooLongCharacters(at, "", maxURL))
	case !webhookURLRegexp.MatchString(w.URL):
		errs = append(errs, field.Invalid(at, field.OmitValueType{}, "use https://host/path, without credentials")) // the value may contain some
	}
	if w.Timeout != "" {
		if _, problem := syntax.ParseDuration(w.Timeout, v1alpha1.MinDuration, v1alpha1.MaxValidationTimeout); problem != "" {
			errs = append(errs, fielderr.Invalid(path.Child("timeout"), w.Timeout, problem))
		}
	}
	errs = append(errs, validateSecret(path.Child("secretRef"), w.SecretRef)...)
	errs = append(errs, validateSecret(path.Child("caSecretRef"), w.CASecretRef)...)
	return append(errs, fielderr.OneOf(path.Child("failurePolicy"), w.FailurePolicy, v1alpha1.FailurePolicyFail, v1alpha1.FailurePolicyIgnore)...)
}

const webhookURLPattern = `^https://[^/?#@\s\x00-\x1f\x7f-][^#@\s\x00-\x1f\x7f]*$`

var webhookURLRegexp = regexp.MustCompile(webhookURLPattern)
