import java.nio.file.Files;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.serialization.SimpleStringEncoder;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.core.fs.Path;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.reader.TextLineInputFormat;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.util.Collector;

/**
 * A running count per word on a local mini-cluster of two slots: keyed heap state, exactly-once
 * checkpoints to the local disk, the counts written at the end of the input by the exactly-once
 * file sink. Arguments: "text" (one word a line) or "parquet" (a column "word"), folder of such files, how many of them warm
 * up, folder to write into, milliseconds between checkpoints, seconds to warm up (negative: do not), seconds to repeat the timed run.
 * Prints a line for each timed run: {"seconds": ..., "checkpoints": ..., "folder": ...}.
 */
public class FlinkCount {
    static final AtomicInteger CHECKPOINTS = new AtomicInteger();

    public static void main(String[] args) throws Exception {
        boolean columns = args[0].equals("parquet");
        Path[] files;
        try (var found = Files.list(java.nio.file.Path.of(args[1]))) {
            files = found.sorted().map(file -> new Path(file.toString())).toArray(Path[]::new);
        }
        Path[] warm = Arrays.copyOf(files, Integer.parseInt(args[2]));
        String folder = args[3];
        long interval = Long.parseLong(args[4]);
        double warmSecs = Double.parseDouble(args[5]);
        double timedSecs = Double.parseDouble(args[6]);
        long began = System.nanoTime();
        for (int n = 0; warmSecs >= 0 && (n == 0 || secondsSince(began) < warmSecs); n++) {
            String into = folder + "/warm-" + n;
            count(columns, warm, into, into + "-checkpoints", interval);
        }
        began = System.nanoTime();
        for (int n = 0; n == 0 || secondsSince(began) < timedSecs; n++) {
            String into = "timed-" + n;
            CHECKPOINTS.set(0);
            long start = System.nanoTime();
            count(columns, files, folder + "/" + into, folder + "/checkpoints-" + n, interval);
            System.out.printf(
                    Locale.ROOT,
                    "{\"seconds\": %.3f, \"checkpoints\": %d, \"folder\": \"%s\"}%n",
                    secondsSince(start),
                    CHECKPOINTS.get(),
                    into);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // its threads would keep the process alive
    }

    static double secondsSince(long nanos) {
        return (System.nanoTime() - nanos) / 1e9;
    }

    static void count(
            boolean columns, Path[] files, String out, String checkpoints, long interval)
            throws Exception {
        Configuration settings = new Configuration();
        settings.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        settings.set(CheckpointingOptions.CHECKPOINT_STORAGE, "filesystem");
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + checkpoints);
        var job = StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        job.setRuntimeMode(RuntimeExecutionMode.STREAMING);
        job.enableCheckpointing(interval); // exactly once is the default mode
        job.getConfig().enableObjectReuse();
        var sink =
                FileSink.forRowFormat(new Path(out), new SimpleStringEncoder<String>())
                        .withRollingPolicy(OnCheckpointRollingPolicy.build())
                        .build();
        (columns ? wordsOfColumns(job, files) : wordsOfLines(job, files))
                .keyBy(word -> word, Types.STRING)
                .process(new Count())
                .returns(Types.STRING)
                .sinkTo(sink);
        job.execute("count");
    }

    static DataStream<String> wordsOfLines(StreamExecutionEnvironment job, Path[] files) {
        var source = FileSource.forRecordStreamFormat(new TextLineInputFormat(), files).build();
        return job.fromSource(source, WatermarkStrategy.noWatermarks(), "words");
    }

    /** Reads only that column, in batches as large as Flink's own tables do. */
    static DataStream<String> wordsOfColumns(StreamExecutionEnvironment job, Path[] files) {
        var type = RowType.of(new LogicalType[] {new VarCharType(VarCharType.MAX_LENGTH)}, new String[] {"word"});
        var format =
                new ParquetColumnarRowInputFormat<FileSourceSplit>(
                        new org.apache.hadoop.conf.Configuration(), type, InternalTypeInfo.of(type), 2048, true, true);
        var source = FileSource.forBulkFileFormat(format, files).build();
        return job.fromSource(source, WatermarkStrategy.noWatermarks(), "rows")
                .map((RowData row) -> row.getString(0).toString())
                .returns(Types.STRING);
    }

    /** One number per word; told at the end of the input. */
    public static class Count extends KeyedProcessFunction<String, String, String>
            implements CheckpointListener {
        transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(String word, Context context, Collector<String> out)
                throws Exception {
            Long before = count.value();
            if (before == null) {
                context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
            }
            count.update(before == null ? 1L : before + 1);
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<String> out)
                throws Exception {
            out.collect(context.getCurrentKey() + "\t" + count.value());
        }

        @Override
        public void notifyCheckpointComplete(long id) {
            if (getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() == 0) {
                CHECKPOINTS.incrementAndGet();
            }
        }
    }
}
