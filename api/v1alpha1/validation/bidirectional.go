package validation

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/internal/fielderr"
	"stoker.io/stoker/api/v1alpha1/syntax"
)

const (
	maxWatchPaths  = 64
	maxWatchPath   = 255
	maxPRLabels    = 16
	maxPRLabel     = 50
	maxAuthors     = 256
	maxAuthor      = 255
	maxFilesPerPR  = 1000
	branchAdvice   = "name a branch, such as main"
	templateAdvice = "use text with {{.Namespace}}, {{.GatewayName}} and {{.Profile}}, such as " + v1alpha1.DefaultTargetBranch
)

// branchField matches a field in a template of a branch.
var branchField = regexp.MustCompile(`\{\{-?\s*\.(Namespace|GatewayName|Profile)\s*-?\}\}`)

// proposalsNeedGit is the message of the rule in the CRD, too.
const proposalsNeedGit = "proposals need git: git.repo is a registry"

func validateBidirectional(path *field.Path, gs *v1alpha1.GatewaySync) field.ErrorList {
	b := gs.Spec.Bidirectional
	if b == nil {
		return nil
	}
	errs := validateBranches(path, gs)
	if gs.Proposes() && syntax.IsRegistry(gs.Spec.Git.Repo) {
		errs = append(errs, field.Forbidden(path.Child("enabled"), proposalsNeedGit))
	}
	errs = append(errs, validatePatterns(path.Child("watchPaths"), b.WatchPaths, maxWatchPaths, maxWatchPath, PathPatternProblem)...)
	if _, problem := syntax.ParseDuration(b.Debounce, v1alpha1.MinDuration, v1alpha1.MaxDebounce); b.Debounce != "" && problem != "" {
		errs = append(errs, fielderr.Invalid(path.Child("debounce"), b.Debounce, problem))
	}
	errs = append(errs, validatePRLabels(path.Child("prLabels"), b.PRLabels)...)
	errs = append(errs, fielderr.OneOf(path.Child("conflictStrategy"), b.ConflictStrategy, v1alpha1.StrategyGitWins, v1alpha1.StrategyGatewayWins, v1alpha1.StrategyManual)...)
	errs = append(errs, validateGuardrails(path.Child("guardrails"), &b.Guardrails)...)
	errs = append(errs, fielderr.OneOf(path.Child("provider"), b.Provider, v1alpha1.Providers()...)...)
	errs = append(errs, validateAPIURL(path.Child("apiBaseURL"), b.APIBaseURL)...)
	errs = append(errs, validateCredential(path.Child("auth"), b.Auth)...)
	errs = append(errs, validateAuthors(path.Child("authors"), b.Authors)...)
	if s := b.Signing; s != nil {
		errs = append(errs, validateSigning(path.Child("signing"), s)...)
	}
	return append(errs, fielderr.OneOf(path.Child("onClosed"), b.OnClosed, v1alpha1.OnClosedKeep, v1alpha1.OnClosedRepair)...)
}

// validateBranches checks the branches to push to and to merge into. Only the agent knows whether a short git.ref is a branch or a tag.
func validateBranches(path *field.Path, gs *v1alpha1.GatewaySync) field.ErrorList {
	var errs field.ErrorList
	b, ref := gs.Spec.Bidirectional, gs.Spec.Git.Ref
	base, target := path.Child("baseBranch"), path.Child("targetBranch")
	notBranch := syntax.IsCommit(ref) || strings.HasPrefix(ref, "refs/") && !strings.HasPrefix(ref, branchPrefix)
	switch problem := syntax.GitRefProblem(b.BaseBranch); {
	case b.BaseBranch == "" && notBranch && gs.Proposes():
		errs = append(errs, field.Required(base, "git.ref is not a branch; "+branchAdvice))
	case b.BaseBranch != "" && problem != "":
		errs = append(errs, fielderr.Invalid(base, b.BaseBranch, problem+"; "+branchAdvice))
	}
	template := cmp.Or(b.TargetBranch, v1alpha1.DefaultTargetBranch)
	sample := branchField.ReplaceAllString(template, "x")
	switch problem := syntax.RefProblem(sample); {
	case utf8.RuneCountInString(template) > syntax.MaxRef:
		errs = append(errs, field.TooLongCharacters(target, "", syntax.MaxRef))
	case template == b.BaseBranch:
		errs = append(errs, fielderr.Invalid(target, template, "must differ from baseBranch"))
	case problem != "" && !strings.Contains(sample, "{{"): // the agent checks other templates
		errs = append(errs, fielderr.Invalid(target, template, problem+"; "+templateAdvice))
	}
	return errs
}

const branchPrefix = "refs/heads/"

func validatePRLabels(path *field.Path, labels []string) field.ErrorList {
	if len(labels) > maxPRLabels {
		return field.ErrorList{field.TooMany(path, len(labels), maxPRLabels)}
	}
	var errs field.ErrorList
	for i, label := range labels {
		switch {
		case label == "":
			errs = append(errs, field.Required(path.Index(i), "write a label, or remove the line"))
		case utf8.RuneCountInString(label) > maxPRLabel:
			errs = append(errs, field.TooLongCharacters(path.Index(i), "", maxPRLabel))
		}
	}
	return errs
}

func validateGuardrails(path *field.Path, g *v1alpha1.ProposalGuardrails) field.ErrorList {
	errs := validateSize(path.Child("maxFileSize"), g.MaxFileSize)
	errs = append(errs, validateSize(path.Child("maxTotalSize"), g.MaxTotalSize)...)
	if g.MaxFilesPerPR < 0 || g.MaxFilesPerPR > maxFilesPerPR {
		errs = append(errs, field.Invalid(path.Child("maxFilesPerPR"), g.MaxFilesPerPR, "use from 1 to 1000"))
	}
	return append(errs, validatePatterns(path.Child("excludePatterns"), g.ExcludePatterns, maxWatchPaths, maxWatchPath, PathPatternProblem)...)
}

func validateSize(path *field.Path, size string) field.ErrorList {
	if _, problem := syntax.ParseSize(size); size != "" && problem != "" {
		return field.ErrorList{fielderr.Invalid(path, size, problem)}
	}
	return nil
}

func validateSigning(path *field.Path, s *v1alpha1.CommitSigning) field.ErrorList {
	errs := fielderr.OneOf(path.Child("format"), s.Format, v1alpha1.SigningSSH, v1alpha1.SigningOpenPGP)
	if s.Format == "" {
		errs = field.ErrorList{field.Required(path.Child("format"), "use ssh or openpgp")}
	}
	return append(errs, validateSecret(path.Child("keySecretRef"), &s.KeySecretRef)...)
}

func validateAuthors(path *field.Path, authors map[string]v1alpha1.Author) field.ErrorList {
	if len(authors) > maxAuthors {
		return field.ErrorList{field.TooMany(path, len(authors), maxAuthors)}
	}
	var errs field.ErrorList
	for _, user := range slices.Sorted(maps.Keys(authors)) {
		author := string(authors[user])
		switch {
		case utf8.RuneCountInString(user) > maxAuthor:
			errs = append(errs, field.TooLongCharacters(path, "", maxAuthor))
		case utf8.RuneCountInString(author) > maxAuthor:
			errs = append(errs, field.TooLongCharacters(member(path, user), "", maxAuthor))
		case !authorRegexp.MatchString(author):
			errs = append(errs, fielderr.Invalid(member(path, user), author, "use the form Name <mail@host>"))
		}
	}
	return errs
}
