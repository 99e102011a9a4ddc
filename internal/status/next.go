package status

import (
	"fmt"
	"slices"

	"stoker.io/stoker/api/v1alpha1"
)

// Next returns what happens next in a state with this reason: what Stoker does by itself, or what a user has to do. For a reason that is not
// in the list, such as one of a newer agent, it returns "".
func Next(r v1alpha1.Reason) string { return next[r] }

// NextOf returns Next for a gateway of the GatewaySync name. If a command ends the state, it also names that command. If the agent asks again
// by itself, it says when, and with which command a user makes it ask now.
func NextOf(name string, r v1alpha1.Reason) string {
	says := next[r]
	switch command, ok := now[r]; {
	case ok:
		return says + "; now: stoker " + fmt.Sprintf(command, name)
	case r == v1alpha1.ReasonDesignerSessionActive, r == v1alpha1.ReasonConflictDetected, r == v1alpha1.ReasonNoConfigAccess:
		return says + "; asked again every syncPeriod, or now: stoker sync " + name
	case !r.Known(), r == v1alpha1.ReasonGitThrottled, slices.Contains(ofConfigSync, r):
	case r.Class() == v1alpha1.ClassRetry, r == v1alpha1.ReasonGatewayForbidden, r == v1alpha1.ReasonGatewayUntrusted:
		return says + "; asked again within 5 minutes, or now: stoker sync " + name
	}
	return says
}

// ofConfigSync are the reasons with retries that no gateway has.
var ofConfigSync = []v1alpha1.Reason{v1alpha1.ReasonApplyForbidden, v1alpha1.ReasonKindUnknown, v1alpha1.ReasonPruneFailed}

// now has the command that ends a state with a reason which another request alone does not end.
var now = map[v1alpha1.Reason]string{
	v1alpha1.ReasonMassDeletion:      "sync %s --confirm-deletion=COMMIT",
	v1alpha1.ReasonMaintenanceWindow: "approve %s --window",
	v1alpha1.ReasonApprovalNeeded:    "approve %s",
	v1alpha1.ReasonValidationDenied:  "sync %s --force",
	v1alpha1.ReasonRestored:          "retry %s",
	v1alpha1.ReasonRolledBack:        "retry %s",
	v1alpha1.ReasonCanaryStageFailed: "retry %s",
}

// next has a sentence for each reason of v1alpha1.Reasons, without a capital and a period.
var next = map[v1alpha1.Reason]string{
	v1alpha1.ReasonRefResolved:     "nothing to do",
	v1alpha1.ReasonSynced:          "nothing to do",
	v1alpha1.ReasonStandby:         "nothing to do: this node takes over with the same commit",
	v1alpha1.ReasonPaused:          "the gateway keeps what it runs until a user resumes it",
	v1alpha1.ReasonDryRun:          "nothing is written until a user turns the dry run off",
	v1alpha1.ReasonNoGateways:      "the first gateway follows when its pod starts",
	v1alpha1.ReasonProfilesValid:   "nothing to do",
	v1alpha1.ReasonSidecarInjected: "nothing to do",
	v1alpha1.ReasonHostKeyVerified: "nothing to do",
	v1alpha1.ReasonProposalsReady:  "nothing to do: the next saved change becomes a pull request",

	v1alpha1.ReasonProgressing:             "the sync ends by itself, within seconds or minutes",
	v1alpha1.ReasonWaitingForGateway:       "the sync begins when the gateway has started",
	v1alpha1.ReasonWaitingForCommissioning: "finish the commissioning of the gateway in its browser page, then the sync begins",
	v1alpha1.ReasonWaitingForLead:          "an agent takes the lead within a minute; if none does, run stoker check",
	v1alpha1.ReasonAgentsAway:              "the gateways keep running, but nothing is known or changed until an agent starts: look at the pods, or run stoker check",
	v1alpha1.ReasonUnhealthy:               "the next run checks the objects again; look at the pods that do not start",
	v1alpha1.ReasonDependencyNotReady:      "the objects are applied when the other object is ready",

	v1alpha1.ReasonGitUnreachable:     "the agent tries again by itself; if this lasts, check the network, the proxy and the certificate of the git server",
	v1alpha1.ReasonGitTimeout:         "the agent tries again by itself; if this lasts, check the network to the git server",
	v1alpha1.ReasonGitThrottled:       "the agent waits as long as the git server asks it to, then tries again",
	v1alpha1.ReasonScanFailed:         "the agent asks the gateway to scan again; if this lasts, read the log of the gateway",
	v1alpha1.ReasonGatewayUnreachable: "the agent tries again by itself; if this lasts, check the address and the port of the gateway",
	v1alpha1.ReasonNoSpace:            "this needs a user: make room on the gateway's volume, or enlarge it; the sync then continues",
	v1alpha1.ReasonWriteFailed:        "the agent tries again by itself; if this lasts, check the gateway's volume and its permissions",
	v1alpha1.ReasonVerificationFailed: "the agent tries again by itself; if this lasts, fix the resource that the message names in git",
	v1alpha1.ReasonSnapshotFailed:     "the sync waits until a snapshot can be taken: check the volume and the object storage",

	v1alpha1.ReasonValidationUnavailable: "the agent asks the validation webhook again; if this lasts, check that service",
	v1alpha1.ReasonApplyForbidden:        "this needs a user: grant the right that the message names; the next run then applies the objects",
	v1alpha1.ReasonKindUnknown:           "the next run tries again; install the custom resource definition if no commit brings it",
	v1alpha1.ReasonPruneFailed:           "the next run tries to delete the object again",

	v1alpha1.ReasonDesignerSessionActive: "the sync continues when the Designer is closed, or at the limit that the spec sets",
	v1alpha1.ReasonConflictDetected:      "this needs a user: keep the change of the gateway or that of git",
	v1alpha1.ReasonMassDeletion:          "this needs a user: confirm the deletion, or fix the commit or the mapping",
	v1alpha1.ReasonMaintenanceWindow:     "the gateway follows by itself when its maintenance window opens",
	v1alpha1.ReasonGateClosed:            "the gateway follows by itself when the rollout reaches its step; after an abort, retry or push a fix",
	v1alpha1.ReasonApprovalNeeded:        "this needs a user: approve the stage, or push another commit",
	v1alpha1.ReasonRolloutSoaking:        "the rollout goes on by itself when the time of this stage is over",
	v1alpha1.ReasonValidationDenied:      "the gateway keeps what it runs until the validation webhook allows the change or another commit arrives",
	v1alpha1.ReasonChangesRefused:        "this needs a user: undo the named changes on the gateway, or make them in git",
	v1alpha1.ReasonBranchTaken:           "this needs a user: merge or delete the branch that the message names",
	v1alpha1.ReasonNoConfigAccess:        "the node follows by itself when the redundant pair gives it the configuration",
	v1alpha1.ReasonDuplicateGateway:      "this needs a user: give each of the named pods its own gateway name",
	v1alpha1.ReasonNotOwned:              "this needs a user: let the ConfigSync adopt the object, or remove it from git",
	v1alpha1.ReasonApplyConflict:         "this needs a user: decide who sets the fields that the message names",

	v1alpha1.ReasonRefNotFound:              "the gateways keep what they run; push the ref, or name another one",
	v1alpha1.ReasonAmbiguousRef:             "the gateways keep what they run; name the ref in full, as refs/heads/… or refs/tags/…",
	v1alpha1.ReasonRefNotAllowed:            "the request has no effect; ask for a ref that spec.git.allowedRefs admits",
	v1alpha1.ReasonRefMoved:                 "the request has no effect; request the ref again at the commit that you want",
	v1alpha1.ReasonAuthFailed:               "this needs a user: give the Secret of the repository a valid credential; the agent then continues at once",
	v1alpha1.ReasonHostKeyUnknown:           "this needs a user: add the ssh host key of the git server to known_hosts",
	v1alpha1.ReasonHostKeyMismatch:          "this needs a user: find out why the git server has another ssh host key, before you accept it",
	v1alpha1.ReasonSignatureInvalid:         "the gateways keep what they run until a commit or tag with an accepted signature arrives",
	v1alpha1.ReasonRedirectRefused:          "this needs a user: set the address of the repository to the one that answers",
	v1alpha1.ReasonProfileNotFound:          "this needs a user: add the profile to the GatewaySync, or correct the annotation of the pod",
	v1alpha1.ReasonProfilesInvalid:          "this needs a user: correct the field of the GatewaySync that the message names",
	v1alpha1.ReasonTemplateFailed:           "the gateways keep what they run; fix the template in git",
	v1alpha1.ReasonPatchFailed:              "the gateways keep what they run; fix the patch or the file in git",
	v1alpha1.ReasonConfigSyntaxError:        "the gateways keep what they run; fix the named file in git",
	v1alpha1.ReasonSourceMissing:            "the gateways keep what they run; add the folder to git, or correct the mapping",
	v1alpha1.ReasonUnsafePath:               "the gateways keep what they run; remove the named path from git",
	v1alpha1.ReasonPathCollision:            "the gateways keep what they run; rename one of the two paths in git",
	v1alpha1.ReasonLimitExceeded:            "the gateways keep what they run; make the commit smaller, or raise the limit that the message names",
	v1alpha1.ReasonLFSPointer:               "the gateways keep what they run; commit the file itself instead of its Git LFS pointer",
	v1alpha1.ReasonEmbeddedSecret:           "the gateways keep what they run; remove the secret from git",
	v1alpha1.ReasonReferenceMissing:         "the gateways keep what they run; correct the name in git, or create on the gateway what it names",
	v1alpha1.ReasonGatewayForbidden:         "this needs a user: give the gateway's API key the permission that the message names, or a valid key",
	v1alpha1.ReasonGatewayUntrusted:         "this needs a user: correct spec.gateway, or the certificate of the gateway, as the message says",
	v1alpha1.ReasonPushRejected:             "this needs a user: allow the agent's account to push the branch at the git host",
	v1alpha1.ReasonUnsupportedRepository:    "this needs a user: check the address of the repository; the message says what it lacks",
	v1alpha1.ReasonPodRestartNeeded:         "this needs a user: restart the pod, so that it gets the new credential",
	v1alpha1.ReasonProgressDeadlineExceeded: "the work continues; look at the reason of each gateway that is behind",
	v1alpha1.ReasonRestored:                 "nothing changes until another commit is requested, or a retry of the blocked one",
	v1alpha1.ReasonRolledBack:               "nothing changes until another commit or request arrives",
	v1alpha1.ReasonCanaryStageFailed:        "the other gateways keep what they run; push a fix, retry, or roll back",
	v1alpha1.ReasonManifestInvalid:          "the objects stay as they are; fix the named manifest in git",
	v1alpha1.ReasonApplyRefused:             "the objects stay as they are; fix the named manifest in git",
	v1alpha1.ReasonImmutableField:           "this needs a user: undo the change in git, or allow the object to be recreated",
	v1alpha1.ReasonDependencyCycle:          "this needs a user: remove one of the dependencies",

	v1alpha1.ReasonMissingSidecar:        "this needs a user: the Events of the pod say why it has no agent; fix it, then delete the pod",
	v1alpha1.ReasonNotRequested:          "this needs a user, if the pod is a gateway: add the annotations that ask for an agent",
	v1alpha1.ReasonNamespaceExcluded:     "this needs an administrator: include the namespace in the injection",
	v1alpha1.ReasonGatewaySyncNotFound:   "this needs a user: create the GatewaySync or correct its name at the pod, then delete the pod",
	v1alpha1.ReasonGatewaySyncAmbiguous:  "this needs a user: name the GatewaySync at the pod, then recreate it",
	v1alpha1.ReasonGatewaySyncUnreadable: "this needs a user: correct the GatewaySync if it is damaged, then delete the pod",
	v1alpha1.ReasonNoDataVolume:          "this needs a user: give the pod a volume for the data directory of the gateway",
	v1alpha1.ReasonUnsupportedDataVolume: "this needs a user: use a data volume that two containers can share",
	v1alpha1.ReasonGatewayRunsAsRoot:     "this needs a user: let the gateway run as another user than root",
	v1alpha1.ReasonUnsupportedPod:        "this needs a user: the Events of the pod say what prevents an agent",
	v1alpha1.ReasonAlreadyInjected:       "nothing to do",
	v1alpha1.ReasonInvalidAnnotation:     "this needs a user: correct the annotation that the message names, then delete the pod",
}
