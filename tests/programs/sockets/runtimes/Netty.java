// `Netty serve|ask PORT`: a server and a client on netty's native transport. The protocol is that
// of servers.py.
import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.CompositeByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.epoll.EpollChannelOption;
import io.netty.channel.epoll.EpollEventLoopGroup;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.epoll.EpollSocketChannel;
import io.netty.channel.socket.ChannelInputShutdownEvent;
import io.netty.channel.socket.DuplexChannel;
import io.netty.handler.codec.LengthFieldBasedFrameDecoder;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.List;

public final class Netty {
    static final int CONNECTIONS = 12, REQUESTS = 40;
    static final InetSocketAddress[] address = new InetSocketAddress[1];

    static byte[] data(int number) {
        byte[] data = new byte[new int[] {0, 1, 700, 5000, 3, 70000}[number % 6]];
        for (int at = 0; at < data.length; at++) {
            data[at] = (byte) ('a' + (at * 7 + number) % 26);
        }
        return data;
    }

    // Many small pieces: they leave by `writev`, up to 1024 at a time.
    static ByteBuf framed(byte[] data) {
        CompositeByteBuf all = Unpooled.compositeBuffer(5000);
        all.addComponent(true, Unpooled.buffer(4).writeInt(data.length));
        for (int at = 0; at < data.length; at += 37) {
            int size = Math.min(37, data.length - at);
            all.addComponent(true, Unpooled.wrappedBuffer(data, at, size));
        }
        return all;
    }

    // Answers in upper case, and closes when the other end has said all and has all.
    static final class Answers extends SimpleChannelInboundHandler<ByteBuf> {
        @Override
        protected void channelRead0(ChannelHandlerContext context, ByteBuf frame) {
            byte[] data = new byte[frame.readInt()];
            frame.readBytes(data);
            for (int at = 0; at < data.length; at++) {
                data[at] = (byte) Character.toUpperCase(data[at]);
            }
            context.writeAndFlush(framed(data));
        }

        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof ChannelInputShutdownEvent) {
                context.writeAndFlush(Unpooled.EMPTY_BUFFER).addListener(done -> context.close());
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable error) {
            context.close();
        }
    }

    // Asks for all, then says that it is all; counts answers that are right.
    static final class Asks extends SimpleChannelInboundHandler<ByteBuf> {
        int number, right;

        @Override
        public void channelActive(ChannelHandlerContext context) {
            for (int at = 0; at < REQUESTS; at++) {
                context.write(framed(data(at)));
            }
            context.writeAndFlush(Unpooled.EMPTY_BUFFER)
                .addListener(done -> ((DuplexChannel) context.channel()).shutdownOutput());
        }

        @Override
        protected void channelRead0(ChannelHandlerContext context, ByteBuf frame) {
            byte[] wanted = new String(data(number++)).toUpperCase().getBytes();
            frame.skipBytes(4);
            right += frame.equals(Unpooled.wrappedBuffer(wanted)) ? 1 : 0;
        }
    }

    static ChannelInitializer<Channel> frames(ChannelInboundHandlerAdapter... handler) {
        return new ChannelInitializer<>() {
            @Override
            protected void initChannel(Channel channel) {
                channel.pipeline().addLast(new LengthFieldBasedFrameDecoder(1 << 20, 0, 4),
                    handler.length > 0 ? handler[0] : new Answers());
            }
        };
    }

    static void serve(EpollEventLoopGroup loops) throws Exception {
        for (int at = 0; at < 2; at++) {
            new ServerBootstrap().group(loops).channel(EpollServerSocketChannel.class)
                .option(EpollChannelOption.SO_REUSEPORT, true)
                .childOption(ChannelOption.ALLOW_HALF_CLOSURE, true).childHandler(frames())
                .bind(address[0]).sync();
        }
        Thread.currentThread().join();
    }

    static Bootstrap client(EpollEventLoopGroup loops, Asks asks) {
        return new Bootstrap().group(loops).channel(EpollSocketChannel.class)
            .option(ChannelOption.ALLOW_HALF_CLOSURE, false).handler(frames(asks));
    }

    static void ask(EpollEventLoopGroup loops) throws Exception {
        List<Asks> all = new ArrayList<>();
        List<ChannelFuture> connected = new ArrayList<>();
        for (int at = 0; at < CONNECTIONS; at++) {
            all.add(new Asks());
            connected.add(client(loops, all.get(at)).connect(address[0]));
        }
        EpollSocketChannel first = (EpollSocketChannel) connected.get(0).sync().channel();
        System.out.println("round trips are measured: " + (first.tcpInfo().rtt() > 0));
        for (ChannelFuture one : connected) {
            one.sync().channel().closeFuture().sync();
        }
        System.out.println(all.stream().mapToInt(one -> one.right).sum() + " of "
            + CONNECTIONS * REQUESTS + " answers");
        Throwable refused = client(loops, new Asks()).connect("127.0.0.1", 1).await().cause();
        System.out.println(refused.getMessage());
    }

    public static void main(String[] words) throws Exception {
        address[0] = new InetSocketAddress("127.0.0.1", Integer.parseInt(words[1]));
        EpollEventLoopGroup loops = new EpollEventLoopGroup(2);
        if (words[0].equals("serve")) {
            serve(loops);
        }
        ask(loops);
        loops.shutdownGracefully(0, 1, java.util.concurrent.TimeUnit.SECONDS).sync();
    }
}
