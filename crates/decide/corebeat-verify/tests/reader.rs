//! The readers of all three forms: what they accept, how they reject, and that nothing is lost.

use corebeat_verify::{
    Access, Activation, Chain, Communication, Core, Cost, Effect, Label, Latency, Memory, Model,
    Note, Policy, Preemption, Range, Runnable, Safety, Section, Task, UnitKind, Verdict, analyse,
    contend, read_amalthea, read_csv, read_toml, write_csv, write_toml,
};
use proptest::prelude::*;

/// The public models in the folder `amalthea`, with the numbers of their tasks, cores and labels.
const MODELS: [(&str, &str, [usize; 3]); 5] = [
    ("democar", include_str!("amalthea/democar.amxmi"), [10, 0, 71]),
    ("hierarchicalExample", include_str!("amalthea/hierarchicalExample.amxmi"), [8, 2, 0]),
    ("periodic_8", include_str!("amalthea/modeling_example_periodic_8.amxmi"), [7, 1, 0]),
    ("partitioned_fpp", include_str!("amalthea/partitioned_fpp.amxmi"), [8, 2, 0]),
    ("waters2019", include_str!("amalthea/waters2019-mapped.amxmi"), [14, 7, 31]),
];

fn model(name: &str) -> Model {
    read_amalthea(MODELS.iter().find(|m| m.0 == name).unwrap().1).unwrap()
}

fn task<'a>(model: &'a Model, name: &str) -> &'a Task {
    model.tasks.iter().find(|t| t.name == name).unwrap()
}

fn time(model: &Model, name: &str) -> Range {
    let task = task(model, name);
    let core = task.core.unwrap();
    model.execution(task, &model.cores[core], Some(core)).unwrap()
}

#[test]
fn public_models_load_and_survive_conversion() {
    for (name, text, [tasks, cores, labels]) in MODELS {
        let model = read_amalthea(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let counts = [model.tasks.len(), model.cores.len(), model.labels.len()];
        assert_eq!(counts, [tasks, cores, labels], "{name}");
        let written = write_toml(&model);
        assert_eq!(read_toml(&written).unwrap(), model, "{name}: {written}");
    }
}

#[test]
fn times_of_the_waters_model_include_memory_accesses() {
    let model = model("waters2019");
    let dasm = task(&model, "DASM");
    assert_eq!(model.deadline_ns(0), Some(100_000_000));
    assert_eq!(dasm.deadline_ns, Some(5_000_000));
    assert_eq!(dasm.priority, Some(3));
    assert_eq!(model.cores[dasm.core.unwrap()].name, "Core5");
    // 3,719,990 ticks at 2 GHz, and 2 reads and 2 writes of 1 kB: each 16 cache lines of 64 bytes
    // that take 40 cycles.
    assert_eq!(time(&model, "DASM").worst, 1_859_995 + 4 * 16 * 20);
    assert_eq!(task(&model, "SFM").activation, Some(Activation::After(6)));
    let is_noted = |name: &str, what: &str| {
        let id = model.tasks.iter().position(|t| t.name == name);
        let of = |n: &&Note| n.task == id && n.effect == Effect::Optimistic;
        model.notes.iter().filter(of).any(|n| n.what.contains(what))
    };
    assert!(is_noted("PRE_SFM_gpu_POST", "WaitEvent"), "{:#?}", model.notes);
    assert!(is_noted("DASM", "other cores") && !is_noted("OS_Overhead", ""));
    assert!(is_noted("SFM", "UserSpecificSchedulingAlgorithm"));
}

#[test]
fn scheduler_hierarchies_budgets_and_missing_stimuli_are_noted() {
    for (name, algorithm) in [("hierarchicalExample", "budgets"), ("partitioned_fpp", "Grouping")] {
        let notes = model(name).notes;
        let has = |what: &str| {
            notes.iter().any(|n| n.effect == Effect::Optimistic && n.what.contains(what))
        };
        assert!(has("budgets") && has("no stimulus") && has(algorithm), "{notes:#?}");
    }
}

#[test]
fn priorities_of_custom_properties_are_used() {
    let model = model("periodic_8");
    assert_eq!(task(&model, "Task_1").priority, Some(7));
    assert_eq!(task(&model, "Task_7").runnables.len(), 2);
    // A schedule point is between its two runnables.
    assert_eq!(task(&model, "Task_7").preemption, Preemption::BetweenRunnables);
    assert_eq!(time(&model, "Task_7"), Range { best: 79_950_000, worst: 80_000_000 });
    assert!(model.notes.iter().all(|n| n.effect != Effect::Optimistic), "{:#?}", model.notes);
}

/// An AMALTHEA model with these parts.
fn amxmi(version: &str, parts: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<am:Amalthea xmi:version=\"2.0\" \
         xmlns:xmi=\"http://www.omg.org/XMI\" xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
         xmlns:am=\"http://app4mc.eclipse.org/amalthea/{version}\">\n{parts}\n</am:Amalthea>"
    )
}

/// A model of version 3 with a critical section, alternatives, an interrupt and a chain.
const VERSION_3: &str = r#"
<swModel>
  <tasks name="Fast task" stimuli="t?type=PeriodicStimulus" preemption="cooperative"><activityGraph>
    <items xsi:type="am:RunnableCall" runnable="r?type=Runnable"/>
    <items xsi:type="am:InterProcessTrigger" stimulus="p?type=InterProcessStimulus"/>
  </activityGraph></tasks>
  <tasks name="Next" stimuli="p?type=InterProcessStimulus"><activityGraph>
    <items xsi:type="am:Group"><items xsi:type="am:RunnableCall" runnable="s?type=Runnable"/></items>
  </activityGraph></tasks>
  <isrs name="Irq" stimuli="c?type=ArrivalCurveStimulus"><activityGraph>
    <items xsi:type="am:Ticks"><default xsi:type="am:DiscreteValueConstant" value="10"/></items>
  </activityGraph></isrs>
  <runnables name="r"><activityGraph>
    <items xsi:type="am:SemaphoreAccess" semaphore="lock?type=Semaphore" access="request"/>
    <items xsi:type="am:Ticks"><default xsi:type="am:DiscreteValueConstant" value="100"/></items>
    <items xsi:type="am:SemaphoreAccess" semaphore="lock?type=Semaphore" access="release"/>
    <items xsi:type="am:Switch">
      <entries><items xsi:type="am:Ticks"><default xsi:type="am:DiscreteValueConstant" value="50"/></items></entries>
      <entries><items xsi:type="am:RunnableCall" runnable="s?type=Runnable"/></entries>
    </items>
  </activityGraph></runnables>
  <runnables name="s"><activityGraph>
    <items xsi:type="am:ExecutionNeed"><needs key="Instructions">
      <value xsi:type="am:DiscreteValueBoundaries" lowerBound="100" upperBound="400"/></needs></items>
  </activityGraph></runnables>
</swModel>
<hwModel>
  <definitions xsi:type="am:ProcessingUnitDefinition" name="K" features="Instructions/two?type=HwFeature"/>
  <featureCategories name="Instructions"><features name="two" value="2.0"/></featureCategories>
  <structures name="E" structureType="ECU"><modules xsi:type="am:ProcessingUnit" name="C0"
    frequencyDomain="F?type=FrequencyDomain" definition="K?type=ProcessingUnitDefinition"/></structures>
  <domains xsi:type="am:FrequencyDomain" name="F"><defaultValue value="100" unit="MHz"/></domains>
</hwModel>
<osModel><semaphores name="lock"/><operatingSystems name="os">
  <taskSchedulers name="S" definition="FixedPriorityPreemptive?type=SchedulerDefinition"/>
  <interruptControllers name="I"/></operatingSystems></osModel>
<stimuliModel>
  <stimuli xsi:type="am:PeriodicStimulus" name="t"><recurrence value="10" unit="ms"/>
    <jitter xsi:type="am:TimeBoundaries"><upperBound value="1" unit="ms"/></jitter></stimuli>
  <stimuli xsi:type="am:InterProcessStimulus" name="p"/>
  <stimuli xsi:type="am:ArrivalCurveStimulus" name="c">
    <entries numberOfOccurrences="3"><lowerTimeBorder value="5" unit="ms"/></entries>
    <entries numberOfOccurrences="2"><lowerTimeBorder value="1" unit="ms"/></entries></stimuli>
</stimuliModel>
<eventModel><events xsi:type="am:ProcessEvent" name="e1" entity="Fast+task?type=Task"/>
  <events xsi:type="am:RunnableEvent" name="e2" entity="s?type=Runnable"/></eventModel>
<constraintsModel>
  <eventChains name="ch" stimulus="e1?type=ProcessEvent" response="e2?type=RunnableEvent"/>
  <timingConstraints xsi:type="am:EventChainLatencyConstraint" name="l" scope="ch?type=EventChain" type="Reaction">
    <maximum value="20" unit="ms"/></timingConstraints>
</constraintsModel>
<mappingModel>
  <schedulerAllocation scheduler="S?type=TaskScheduler" responsibility="C0?type=ProcessingUnit"/>
  <schedulerAllocation scheduler="I?type=InterruptController" responsibility="C0?type=ProcessingUnit"/>
  <taskAllocation task="Fast+task?type=Task" scheduler="S?type=TaskScheduler">
    <schedulingParameters key="priority"><value xsi:type="am:IntegerObject" value="4"/></schedulingParameters>
  </taskAllocation>
  <taskAllocation task="Next?type=Task" scheduler="S?type=TaskScheduler">
    <schedulingParameters key="priority"><value xsi:type="am:IntegerObject" value="2"/></schedulingParameters>
  </taskAllocation>
  <isrAllocation isr="Irq?type=ISR" controller="I?type=InterruptController" priority="1"/>
</mappingModel>"#;

#[test]
fn later_versions_have_sections_alternatives_interrupts_and_chains() {
    let model = read_amalthea(&amxmi("3.3.0", VERSION_3)).unwrap();
    assert_eq!(model.notes.iter().find(|n| n.effect == Effect::Optimistic), None);
    let fast = task(&model, "Fast task");
    // 100 ticks, and the longer of 50 ticks and 400 instructions, 2 in a tick; 10 ns for a tick.
    // The alternative without an entry takes no time.
    assert_eq!(time(&model, "Fast task"), Range { best: 1_000, worst: 3_000 });
    assert_eq!(fast.sections, [Section { resource: 0, worst_ns: 1_000 }]);
    assert_eq!((fast.priority, fast.preemption), (Some(4), Preemption::Cooperative));
    let jitter_ns = 1_000_000;
    let periodic = Activation::Periodic { period_ns: 10_000_000, offset_ns: None, jitter_ns };
    assert_eq!(fast.activation, Some(periodic));
    assert_eq!(task(&model, "Next").activation, Some(Activation::After(0)));
    let irq = task(&model, "Irq");
    assert_eq!(irq.activation, Some(Activation::Curve(vec![1_000_000, 5_000_000])));
    assert!(irq.is_isr && irq.priority > fast.priority);
    assert_eq!(model.chains[0].tasks, [0, 1]);
    assert_eq!(model.chains[0].reaction_max_ns, Some(20_000_000));
    assert_eq!(model.cores[0].unit, "E");
}

#[test]
fn unsupported_features_are_noted_with_their_place() {
    for (from, to, what) in [
        ("am:Switch", "am:WhileLoop", "WhileLoop"),
        (
            "preemption=\"cooperative\"><activityGraph>",
            "preemption=\"non_preemptive\"><activityGraph><items xsi:type=\"am:SchedulePoint\"/>",
            "schedule points",
        ),
        ("upperBound=\"400\"", "", "not a bounded number"),
        ("value=\"2.0\"", "value=\"x\"", "no feature Instructions"),
        ("access=\"release\"", "access=\"wait\"", "semaphore"),
        (
            "am:ArrivalCurveStimulus\" name",
            "am:VariableRateStimulus\" name",
            "VariableRateStimulus",
        ),
        ("FixedPriorityPreemptive?", "Round?", "'Round' is not supported"),
        ("FixedPriorityPreemptive?", "EarliestDeadlineFirst?", "different policies share"),
        ("type=\"Reaction\"", "type=\"Other\"", "not checked"),
        ("<osModel>", "<futureModel/><osModel>", "futureModel"),
    ] {
        let text = amxmi("2.0.0", &VERSION_3.replace(from, to));
        let notes = read_amalthea(&text).unwrap().notes;
        let has = |n: &Note| n.what.contains(what) && n.effect == Effect::Optimistic;
        let note = notes.iter().find(|n| has(n)).unwrap_or_else(|| panic!("{what}: {notes:#?}"));
        assert!(note.place.starts_with("line "), "{note:?}");
    }
}

#[test]
fn mistakes_are_reported_in_one_line_with_their_place() {
    let cut = amxmi("3.3.0", VERSION_3);
    for (text, place, what) in [
        (cut[..cut.len() - 30].to_owned(), "line 64", "incomplete"),
        (amxmi("0.7.1", ""), "line 2", "version '0.7.1'"),
        (amxmi("4.0.0", ""), "line 2", "version '4.0.0'"),
        ("<a/>".into(), "line 1", "no AMALTHEA model"),
        (String::new(), "line 1", "incomplete"),
        ("<!DOCTYPE a><a/>".into(), "line 1", "document type"),
        (cut.replace("value=\"10\" unit=\"ms\"", "value=\"0\" unit=\"ms\""), "task", "period 0"),
        (cut.replace("value=\"10\" unit=\"ms\"", "value=\"-5\" unit=\"ms\""), "'t'", "no time"),
        (cut.replace("runnable=\"r?", "runnable=\"x?"), "line 6", "no runnable 'x'"),
        (cut.replace("100\" unit=\"MHz", "0.5\" unit=\"Hz"), "'F'", "below 1 Hz"),
        (cut.replace("name=\"Next\"", "name=\"Fast task\""), "'Fast task'", "twice"),
        (cut.replace("name=\"Next\"", ""), "line 9", "no name"),
    ] {
        let error = read_amalthea(&text).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains(place), "{what}, {place}: {error}");
        assert!(!error.contains('\n'));
    }
    let cycle = VERSION_3.replace(
        "<items xsi:type=\"am:ExecutionNeed\">",
        "<items xsi:type=\"am:RunnableCall\" runnable=\"r?type=Runnable\"/>\
         <items xsi:type=\"am:ExecutionNeed\">",
    );
    let error = read_amalthea(&amxmi("3.3.0", &cycle)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("cycle"), "{error}");
    let deep = "<a>".repeat(1_000_000);
    assert!(read_amalthea(&deep).is_err());
}

#[test]
fn tables_have_units_and_resources() {
    let text = "name, period_ms, offset, jitter_us, deadline, best, worst, priority, core, resources\n\
                a, 10, 1 ms, 200, , 1 ms, 2 ms, 3, c0, lock: 20 us; other: 5 us\n\n\
                b, 0.5, , , 400us, , 0.1ms, 1, c1, lock: 7 us\n";
    let model = read_csv(text).unwrap();
    assert_eq!(model.resources, ["lock", "other"]);
    assert_eq!(model.tasks[0].sections[1], Section { resource: 1, worst_ns: 5_000 });
    assert_eq!(time(&model, "b"), Range::exactly(100_000));
    let jitter_ns = 200_000;
    let activation =
        Activation::Periodic { period_ns: 10_000_000, offset_ns: Some(1_000_000), jitter_ns };
    assert_eq!(model.tasks[0].activation, Some(activation));
    assert_eq!(read_csv(&write_csv(&model).unwrap()).unwrap(), model);
}

#[test]
fn times_of_tables_are_rounded_to_the_safe_side() {
    let text = "name,period_us,deadline_us,best_us,worst_us\na,10.0005,9.9995,1.0005,1.0005\n";
    let model = read_csv(text).unwrap();
    assert_eq!(model.period_ns(0), Some(10_000));
    assert_eq!(model.deadline_ns(0), Some(9_999));
    assert_eq!(time(&model, "a"), Range { best: 1_000, worst: 1_001 });
}

#[test]
fn mistakes_in_tables_and_toml_have_a_place() {
    for (text, place, what) in [
        ("", "line 1", "no columns"),
        ("name,perod\na,1", "line 1", "no column is named 'perod'"),
        ("name,period,worst\na,1 ms", "line 2, task 'a'", "2 cells"),
        ("name,period,worst\na,1,1 ms", "line 2, task 'a'", "no unit"),
        ("name,period,worst\na,0 ms,1 ms", "task 'a'", "period 0"),
        ("name,period,worst\na,-1 ms,1 ms", "line 2, task 'a'", "no time"),
        ("name,period,best,worst\na,1 ms,2 us,1 us", "task 'a'", "best case"),
        ("name,period,worst,priority\na,1 ms,1 us,high", "line 2", "priority 'high'"),
        ("name,period,worst,resources\na,1 ms,1 us,lock", "line 2", "resource 'lock'"),
        ("name,period,worst\na,1 ms,1 us\na,1 ms,1 us", "task 'a'", "twice"),
        ("name,period,worst\na\u{1b}[1m,1 ms,1 us", "task 'a\\u{1b}[1m'", "control"),
    ] {
        let error = read_csv(text).unwrap_err().to_string();
        assert!(error.starts_with(place) && error.contains(what), "{error}");
    }
    for (text, place, what) in [
        ("tasks = 1", "line 1", "invalid type"),
        ("\n[[tasks]]\nname = 'a'\nperiod = '1'", "line 4", "no unit"),
        ("[[tasks]]\nname = 'a'\ncore = 'x'", "task 'a'", "no core 'x'"),
        ("[[tasks]]\nname = 'a'\nafter = 'a'", "task 'a'", "cycle"),
        (
            "[[tasks]]\nname = 'a'\n[[tasks]]\nname = 'b'\nafter = 'a'\ndeadline = '0 ms'",
            "task 'b'",
            "deadline in nanoseconds is 0",
        ),
        ("[[tasks]]\nname = 'a'\noffset = '1 ms'", "task 'a'", "without period"),
        ("[[tasks]]\nname = 'a'\nperiode = '1 ms'", "line 3", "unknown field"),
        ("[[tasks]]\nname = 'a\\nb'\narrival_spans = ['0 ms']", "task 'a\\nb'", "arrival curve"),
    ] {
        let error = read_toml(text).unwrap_err().to_string();
        assert!(error.starts_with(place) && error.contains(what), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn tables_refuse_what_they_cannot_express() {
    let error = write_csv(&model("waters2019")).unwrap_err().to_string();
    assert!(error.contains("write the TOML form instead"), "{error}");
    let error = write_csv(&model("periodic_8")).unwrap_err().to_string();
    assert!(error.starts_with("task 'Task_7': a table has no runnables"), "{error}");
    let table = read_csv("name,period_ms,worst_ms,priority\na,7,3,3").unwrap();
    for (part, place) in [
        ("[[chains]]\nname = 'x'\ntasks = ['a']\n", "chain 'x': a table has no chains"),
        ("[[memories]]\nname = 'x'\nsize_bytes = 1\n", "memory 'x': a table has no memories"),
    ] {
        let model = read_toml(&(write_toml(&table) + part)).unwrap();
        let error = write_csv(&model).unwrap_err().to_string();
        assert!(error.starts_with(place), "{error}");
    }
}

/// Calls and references of which each has several of the next: the number of ways is exponential.
#[test]
fn exponential_numbers_of_ways_are_limited() {
    let mut software = "<swModel><runnables name=\"r0\"><activityGraph>".to_owned();
    for access in ["request", "release"] {
        let semaphore = "xsi:type=\"am:SemaphoreAccess\" semaphore=\"lock?type=Semaphore\"";
        software += &format!("<items {semaphore} access=\"{access}\"/>");
    }
    software += "</activityGraph></runnables>";
    for n in 1..60 {
        let call = format!("<items xsi:type=\"am:RunnableCall\" runnable=\"r{}\"/>", n - 1);
        let calls = format!("<activityGraph>{call}{call}</activityGraph>");
        software += &format!("<runnables name=\"r{n}\">{calls}</runnables>");
    }
    let parts = software + "</swModel><osModel><semaphores name=\"lock\"/></osModel>";
    let error = read_amalthea(&amxmi("3.3.0", &parts)).unwrap_err().to_string();
    assert!(error.contains("more than 10,000 critical sections"), "{error}");

    let mut chains = "<constraintsModel><eventChains name=\"c0\"/>".to_owned();
    for n in 1..20 {
        let segments = format!("<segments eventChain=\"c{}\"/>", n - 1).repeat(10);
        chains += &format!("<eventChains name=\"c{n}\">{segments}</eventChains>");
    }
    let model = read_amalthea(&amxmi("3.3.0", &(chains + "</constraintsModel>"))).unwrap();
    let is_limited = |n: &Note| n.what.contains("it has more than 10,000 parts");
    assert!(model.notes.iter().any(is_limited), "{:#?}", model.notes);
}

/// A scheduler of two cores: its tasks share a queue, unless a task or an interrupt has a core of
/// its own, or the cores differ.
#[test]
fn scheduler_of_several_cores_is_global() {
    let core = |n: u32| {
        format!(
            "<modules xsi:type=\"am:ProcessingUnit\" name=\"C{n}\" \
             frequencyDomain=\"F{n}?type=FrequencyDomain\"/>"
        )
    };
    let domain = |n: u32, mhz: u32| {
        format!(
            "<domains xsi:type=\"am:FrequencyDomain\" name=\"F{n}\">\
             <defaultValue value=\"{mhz}\" unit=\"MHz\"/></domains>"
        )
    };
    let ticks = "<activityGraph><items xsi:type=\"am:Ticks\">\
                 <default xsi:type=\"am:DiscreteValueConstant\" value=\"100\"/></items></activityGraph>";
    let text = |mhz: u32, affinity: &str| {
        let tasks: String = ["A", "B"]
            .map(|n| {
                format!("<tasks name=\"{n}\" stimuli=\"t?type=PeriodicStimulus\">{ticks}</tasks>")
            })
            .concat();
        let allocations: String = [("A", ""), ("B", affinity)]
            .map(|(n, affinity)| {
                format!(
                    "<taskAllocation task=\"{n}?type=Task\" scheduler=\"S?type=TaskScheduler\" \
                     {affinity}><schedulingParameters priority=\"1\"/></taskAllocation>"
                )
            })
            .concat();
        amxmi(
            "1.0.0",
            &format!(
                "<swModel>{tasks}</swModel><hwModel><structures name=\"E\">{}{}</structures>{}{}\
                 </hwModel><osModel><operatingSystems name=\"os\"><taskSchedulers name=\"S\">\
                 <schedulingAlgorithm xsi:type=\"am:FixedPriorityPreemptive\"/></taskSchedulers>\
                 </operatingSystems></osModel><stimuliModel><stimuli \
                 xsi:type=\"am:PeriodicStimulus\" name=\"t\"><recurrence value=\"10\" \
                 unit=\"ms\"/></stimuli></stimuliModel><mappingModel><schedulerAllocation \
                 scheduler=\"S?type=TaskScheduler\" responsibility=\"C0?type=ProcessingUnit \
                 C1?type=ProcessingUnit\"/>{allocations}</mappingModel>",
                core(0),
                core(1),
                domain(0, 100),
                domain(1, mhz)
            ),
        )
    };
    let optimistic = |model: &Model| -> Vec<String> {
        let notes = model.notes.iter().filter(|n| n.effect == Effect::Optimistic);
        notes.map(|n| n.what.clone()).collect()
    };
    let global = read_amalthea(&text(100, "")).unwrap();
    assert_eq!(optimistic(&global), Vec::<String>::new());
    assert!(global.cores.iter().all(|c| c.cluster == "S"), "{global:#?}");
    assert_eq!(global.tasks.iter().map(|t| t.core).collect::<Vec<_>>(), [Some(0); 2]);
    assert_eq!(analyse(&global).verdict, Verdict::Schedulable);
    for (mhz, affinity, what) in [
        (200, "", "different cores may run"),
        (100, "affinity=\"C1?type=ProcessingUnit\"", "only core 'C1' of scheduler 'S'"),
    ] {
        let model = read_amalthea(&text(mhz, affinity)).unwrap();
        let notes = optimistic(&model);
        assert!(notes.iter().any(|n| n.contains(what)), "{notes:?}");
        assert_eq!(analyse(&model).verdict, Verdict::Unknown);
    }
}

/// Two tasks with a scheduler of two cores; `hardware` and `allocations` are further elements.
fn two_cores(accesses: &str, modules: &str, allocations: &str) -> String {
    let core = |n: u32| {
        let access = |memory: u32| {
            format!(
                "<accessElements destination=\"M{memory}?type=Memory\">\
                 <readLatency xsi:type=\"am:DiscreteValueConstant\" value=\"5\"/>\
                 <writeLatency xsi:type=\"am:DiscreteValueConstant\" value=\"5\"/>\
                 </accessElements>"
            )
        };
        let accesses: String = accesses
            .split_whitespace()
            .filter_map(|pair| pair.strip_prefix(&format!("{n}-"))?.parse().ok())
            .map(access)
            .collect();
        format!(
            "<modules xsi:type=\"am:ProcessingUnit\" name=\"C{n}\" \
             frequencyDomain=\"F?type=FrequencyDomain\">{accesses}</modules>"
        )
    };
    let task = |n: &str, label: u32| {
        format!(
            "<tasks name=\"{n}\" stimuli=\"t?type=PeriodicStimulus\"><activityGraph>\
             <items xsi:type=\"am:LabelAccess\" data=\"L{label}?type=Label\" access=\"read\"/>\
             <items xsi:type=\"am:Ticks\"><default xsi:type=\"am:DiscreteValueConstant\" \
             value=\"600000\"/></items></activityGraph></tasks>"
        )
    };
    let label = |n: u32| format!("<labels name=\"L{n}\"><size value=\"4\" unit=\"B\"/></labels>");
    let scheduler = |name: &str| {
        format!(
            "<taskSchedulers name=\"{name}\"><schedulingAlgorithm \
             xsi:type=\"am:FixedPriorityPreemptive\"/></taskSchedulers>"
        )
    };
    let cores = |name: &str, cores: &str| {
        let cores = cores.split_whitespace().map(|c| format!("{c}?type=ProcessingUnit"));
        format!(
            "<schedulerAllocation scheduler=\"{name}?type=TaskScheduler\" responsibility=\"{}\"/>",
            cores.collect::<Vec<_>>().join(" ")
        )
    };
    let memory = |n: u32| {
        let label = format!("abstractElement=\"L{n}?type=Label\"");
        let mapping = format!("<memoryMapping {label} memory=\"M{n}?type=Memory\"/>");
        (format!("<modules xsi:type=\"am:Memory\" name=\"M{n}\"/>"), mapping)
    };
    let ((m0, in0), (m1, in1)) = (memory(0), memory(1));
    let schedulers: String = ["S", "P", "Q"].map(scheduler).concat();
    let mapped = [cores("S", "C0 C1"), cores("P", "C0"), cores("Q", "C1")].concat();
    amxmi(
        "1.0.0",
        &format!(
            "<swModel>{}{}{}{}</swModel><hwModel><structures name=\"E\">{}{}{m0}{m1}{modules}\
             </structures><domains xsi:type=\"am:FrequencyDomain\" name=\"F\"><defaultValue \
             value=\"100\" unit=\"MHz\"/></domains></hwModel><osModel><operatingSystems \
             name=\"os\">{schedulers}</operatingSystems></osModel><stimuliModel><stimuli \
             xsi:type=\"am:PeriodicStimulus\" name=\"t\"><recurrence value=\"10\" unit=\"ms\"/>\
             </stimuli></stimuliModel><mappingModel>{mapped}{allocations}{in0}{in1}</mappingModel>",
            task("A", 0),
            task("B", 1),
            label(0),
            label(1),
            core(0),
            core(1),
        ),
    )
}

fn allocation(task: &str, scheduler: &str, affinity: &str) -> String {
    format!(
        "<taskAllocation task=\"{task}?type=Task\" scheduler=\"{scheduler}?type=TaskScheduler\" \
         affinity=\"{affinity}\"><schedulingParameters priority=\"1\"/></taskAllocation>"
    )
}

/// Two cores that use different memories wait for each other at the connection between them.
#[test]
fn contention_does_not_remove_the_note_about_connections() {
    let apart = [allocation("A", "P", ""), allocation("B", "Q", "")].concat();
    let verdicts = |modules: &str| {
        let model = read_amalthea(&two_cores("0-0 1-1", modules, &apart)).unwrap();
        (analyse(&model).verdict, analyse(&contend(&model)).verdict)
    };
    assert_eq!(verdicts(""), (Verdict::Unknown, Verdict::Schedulable));
    let bus = "<modules xsi:type=\"am:ConnectionHandler\" name=\"bus\"/>";
    assert_eq!(verdicts(bus), (Verdict::Unknown, Verdict::Unknown));
}

/// Each core of a queue may run a task: a latency of one of them is not enough.
#[test]
fn latencies_of_all_cores_of_a_queue_are_required() {
    let shared = [allocation("A", "S", ""), allocation("B", "S", "")].concat();
    let notes = |accesses: &str| {
        let notes = read_amalthea(&two_cores(accesses, "", &shared)).unwrap().notes;
        notes.into_iter().filter(|n| n.what.contains("take an unknown time")).collect::<Vec<_>>()
    };
    assert_eq!(notes("0-0 0-1 1-0 1-1"), []);
    let missing = notes("0-0 0-1 1-1");
    assert_eq!(missing.iter().map(|n| n.task).collect::<Vec<_>>(), [Some(0)]);
    assert!(missing[0].what.contains("core 'C1'"), "{missing:?}");
}

#[test]
fn second_allocation_to_other_cores_is_rejected() {
    let read = |first: &str, second: &str| {
        let both = [allocation("A", first, ""), allocation("A", second, "")].concat();
        read_amalthea(&two_cores("0-0 0-1 1-0 1-1", "", &(both + &allocation("B", "P", ""))))
    };
    for (first, second) in [("P", "Q"), ("Q", "S"), ("S", "Q"), ("P", "S")] {
        let error = read(first, second).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("two allocations to different cores"), "{error}");
    }
    assert_eq!(read("P", "P").unwrap().tasks[0].core, Some(0));
}

#[test]
fn affinity_to_all_cores_in_another_order_is_no_restriction() {
    let affinity = "C1?type=ProcessingUnit C0?type=ProcessingUnit";
    let both = [allocation("A", "S", affinity), allocation("B", "S", "")].concat();
    let text = two_cores("0-0 0-1 1-0 1-1", "", &both);
    let model = read_amalthea(&text).unwrap();
    assert!(model.tasks.iter().all(|t| t.core == Some(0)), "{model:#?}");
    let other = text.replace("am:FixedPriorityPreemptive", "am:Pfair");
    let notes = read_amalthea(&other).unwrap().notes;
    assert!(notes.iter().any(|n| n.what.contains("'Pfair' is not supported")), "{notes:#?}");
    assert!(!notes.iter().any(|n| n.what.contains("shares cores")), "{notes:#?}");
}

fn range() -> impl Strategy<Value = Range> {
    (0..1u64 << 40, 0..1u64 << 40).prop_map(|(best, more)| Range { best, worst: best + more })
}

fn cost() -> impl Strategy<Value = Cost> {
    let access = (0..2usize, range(), range()).prop_map(|(label, reads, writes)| Access {
        label,
        reads,
        writes,
    });
    let ticks = proptest::collection::btree_map("[a-z]{0,2}", range(), 0..3);
    (range(), ticks, proptest::collection::vec(access, 0..3)).prop_map(
        |(time_ns, ticks, accesses)| Cost { time_ns, ticks: ticks.into_iter().collect(), accesses },
    )
}

fn activation() -> impl Strategy<Value = Option<Activation>> {
    let time = 1..1u64 << 50;
    prop_oneof![
        Just(None),
        (time.clone(), proptest::option::of(time.clone()), 0..1u64 << 50).prop_map(
            |(period_ns, offset_ns, jitter_ns)| Some(Activation::Periodic {
                period_ns,
                offset_ns,
                jitter_ns
            })
        ),
        time.clone().prop_map(|distance_ns| Some(Activation::Sporadic { distance_ns })),
        proptest::collection::vec(time, 1..4).prop_map(|mut spans| {
            spans.sort_unstable();
            Some(Activation::Curve(spans))
        }),
        Just(Some(Activation::After(0))),
    ]
}

fn any_task() -> impl Strategy<Value = Task> {
    let preemption = prop_oneof![
        Just(Preemption::Preemptive),
        Just(Preemption::Cooperative),
        Just(Preemption::BetweenRunnables),
        Just(Preemption::NonPreemptive)
    ];
    let safety = prop_oneof![Just(Safety::QM), Just(Safety::A), Just(Safety::D)];
    let modes = proptest::sample::subsequence(vec![0, 1], 0..=2);
    let parts = (
        activation(),
        cost(),
        proptest::collection::vec(0..2usize, 0..3),
        proptest::option::of(0..9u32),
        proptest::option::of(0..2usize),
    );
    let rest = (preemption, safety, modes, "[a-z]{0,2}", proptest::option::of(1..1u64 << 50));
    (parts, rest).prop_map(|(parts, rest)| {
        let (activation, cost, runnables, priority, core) = parts;
        let (preemption, safety, modes, component, deadline_ns) = rest;
        Task {
            activation,
            cost,
            runnables,
            priority,
            core,
            preemption,
            safety,
            modes,
            component,
            deadline_ns,
            sections: vec![Section { resource: 0, worst_ns: 77 }],
            ..Task::new("", 1, Range::default(), 0)
        }
    })
}

fn any_model() -> impl Strategy<Value = Model> {
    let tasks = proptest::collection::vec(any_task(), 1..5);
    (tasks, proptest::collection::vec(cost(), 2), "\\PC{0,5}").prop_map(
        |(mut tasks, costs, odd)| {
            for (t, task) in tasks.iter_mut().enumerate() {
                task.name = format!("t{t}{odd}");
            }
            // The first task is the origin of activations.
            tasks[0].activation = Some(Activation::Sporadic { distance_ns: 5 });
            let name = |kind: &str, n: usize| format!("{kind}{n}{odd}");
            let runnables = costs.into_iter().enumerate();
            let policy = Policy::EarliestDeadline;
            let core =
                Core { name: name("c", 0), frequency_hz: Some(7), policy, ..Core::default() };
            let communication = Communication::Let;
            Model {
                cores: vec![
                    core,
                    Core {
                        name: name("c", 1),
                        unit: odd.clone(),
                        cluster: odd.clone(),
                        ..Core::default()
                    },
                ],
                memories: vec![Memory { name: name("m", 0), size_bytes: Some(9) }],
                latencies: vec![Latency {
                    core: 1,
                    memory: 0,
                    read_ns: 3,
                    write_ns: 4,
                    access_bytes: 8,
                    wait_ns: 2,
                }],
                labels: vec![
                    Label { name: name("l", 0), size_bytes: None, memory: Some(0) },
                    Label { name: name("l", 1), size_bytes: Some(3), memory: None },
                ],
                resources: vec![name("r", 0)],
                runnables: runnables
                    .map(|(n, cost)| Runnable { name: name("f", n), cost })
                    .collect(),
                chains: vec![Chain {
                    name: name("chain", 0),
                    tasks: vec![0],
                    communication,
                    reaction_max_ns: Some(4),
                    age_max_ns: None,
                }],
                modes: vec![name("on", 0), name("on", 1)],
                unit: Some(UnitKind {
                    cores: 2,
                    kind: odd.clone(),
                    frequency_hz: Some(5),
                    frequencies_hz: vec![5, 6],
                    idle_mw: 7,
                    core_mw: 8,
                    memory_bytes: Some(4),
                    safety: vec![Safety::D],
                }),
                notes: vec![Note {
                    place: odd.clone(),
                    what: odd.clone(),
                    effect: Effect::Pessimistic,
                    task: Some(0),
                }],
                tasks,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn toml_keeps_every_part_of_a_model(model in any_model()) {
        prop_assert_eq!(model.check(), Ok(()));
        prop_assert_eq!(read_toml(&write_toml(&model)), Ok(model));
    }

    #[test]
    fn arbitrary_text_is_read_or_rejected_in_one_line(text in "(\\PC|\n|,|=|<|>|\\[|\"){0,60}") {
        for error in [read_csv(&text).err(), read_toml(&text).err(), read_amalthea(&text).err()] {
            prop_assert!(error.is_none_or(|e| !e.to_string().contains('\n')));
        }
    }
}

/// Damages of a text: a span is removed, doubled, or replaced by a character.
fn damage(text: &str, random: &mut fastrand::Rng) -> String {
    let bytes = text.as_bytes();
    let from = random.usize(..bytes.len());
    let to = (from + random.usize(..20)).min(bytes.len());
    let middle: Vec<u8> = match random.u8(..4) {
        0 => vec![],
        1 => [&bytes[from..to], &bytes[from..to]].concat(),
        2 => vec![random.choice(*b"<>\"/&0-9.? =").unwrap_or(b'x')],
        _ => return String::from_utf8_lossy(&bytes[..from]).into_owned(),
    };
    let damaged = [&bytes[..from], &middle, &bytes[to..]].concat();
    String::from_utf8_lossy(&damaged).into_owned()
}

/// 400 damaged files of each form: each is read or rejected in one line.
#[test]
fn damaged_files_are_read_or_rejected_in_one_line() {
    let seed = 7;
    let mut random = fastrand::Rng::with_seed(seed);
    let amxmi = amxmi("3.3.0", VERSION_3);
    let toml = write_toml(&read_amalthea(&amxmi).unwrap());
    let csv = "name,period_ms,worst,priority,preemption,resources\na,10,1.5 ms,2,cooperative,\n\
               b,0.5,20 us,1,,lock: 3 us;\n"
        .to_owned();
    for round in 0..400 {
        let place = format!("seed {seed}, round {round}");
        let (mut a, mut t, mut c) = (amxmi.clone(), toml.clone(), csv.clone());
        for _ in 0..random.u8(1..4) {
            (a, t, c) = (damage(&a, &mut random), damage(&t, &mut random), damage(&c, &mut random));
            if a.is_empty() || t.is_empty() || c.is_empty() {
                break;
            }
        }
        for result in [read_amalthea(&a), read_toml(&t), read_csv(&c)] {
            match result {
                Ok(model) => assert_eq!(model.check(), Ok(()), "{place}"),
                Err(e) => assert!(!e.to_string().contains('\n'), "{place}: {e}"),
            }
        }
    }
}
